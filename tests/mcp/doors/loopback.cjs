// Lets a server of Node listen on the loopback interface only; `node --require` runs it first.
const { Server } = require("node:net");
const { listen } = Server.prototype;

Server.prototype.listen = function (port, ...rest) {
  const told = rest.filter((each) => typeof each === "function");
  return listen.call(this, { host: "127.0.0.1", port: Number(port) }, ...told);
};
