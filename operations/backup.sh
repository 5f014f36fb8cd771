#!/bin/sh
# Copies a root while a server writes it. docs/operations.md explains what the copy holds and how it is restored.
#
#   backup.sh ROOT TARGET            the root without its keys: nobody can read what was said in it
#   backup.sh ROOT TARGET KEYS DIR   and the keyring KEYS (by default ROOT.keys) to another directory DIR
#
# TARGET and DIR must not exist. The order is what makes the copy whole: a signed head before its ledger, the commit record
# (HO2) before what it refers to, and content and keys last, because an entry is written after its content and its key.
set -eu
umask 077

root=${1:?usage: backup.sh ROOT TARGET [KEYS DIR]} target=${2:?usage: backup.sh ROOT TARGET [KEYS DIR]}
case $target in /*) ;; *) target=$PWD/$target ;; esac
keys=${3:-} keys_target=${4:-}
for each in "$target" ${keys_target:+"$keys_target"}; do
	if [ -e "$each" ]; then
		echo "backup.sh: $each already exists; name a new directory" >&2
		exit 1
	fi
done
if [ ! -d "$root/HO2" ]; then
	echo "backup.sh: $root has no folder HO2, so it is no root" >&2
	exit 1
fi
mkdir -p "$target"

copy() {
	mkdir -p "$target/$(dirname "$1")"
	cp -p "$1" "$target/$1" || [ ! -e "$1" ] # a temporary file may go between listing and copying
}

# A ledger's file and its finished segments belong together: if a segment was finished meanwhile, the file is another one.
copy_ledger() {
	while :; do
		before=$(ls "$1.segments" 2>/dev/null || true)
		copy "$1"
		[ "$before" != "$(ls "$1.segments" 2>/dev/null || true)" ] || break
	done
	for each in $before; do copy "$1.segments/$each"; done
}

found() { find . -path ./index -prune -o -path ./admin -prune -o -type f "$@" -print | sort; }

(
	cd "$root"
	found -name '*.checkpoint' | while IFS= read -r file; do copy "$file"; done
	found -name ho2m.jsonl | while IFS= read -r file; do copy_ledger "$file"; done
	found -name '*.jsonl' ! -name ho2m.jsonl | while IFS= read -r file; do copy_ledger "$file"; done
	found ! -name '*.checkpoint' ! -name '*.jsonl' ! -path '*.segments/*' | while IFS= read -r file; do copy "$file"; done
)
if [ -n "$keys_target" ]; then
	mkdir -p "$(dirname "$keys_target")"
	cp -RPp "${keys:-$root.keys}" "$keys_target" # the names of keys are links
fi
sync
