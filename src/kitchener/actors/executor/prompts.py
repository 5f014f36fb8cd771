"""Compiles all prompt contracts with their packs, once at start, and finds them by id.

`prompt_files.py` reads the files, `contracts.py` and `packs.py` compile them, and `executor.py` uses the contracts. Explained
in `docs/prompts.md`.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, Self

from kitchener.actors.executor.contracts import MAX_COMPILED_FILES, CompiledContract, ContractFile, contract_of
from kitchener.actors.executor.packs import PackTemplate, compile_pack
from kitchener.actors.executor.prompt_files import PromptSource, prompt_sources, write_manifest
from kitchener.errors import PromptError


class PromptLibrary:
    """All contracts, by id. Load them once, at start, with `PromptLibrary.load`."""

    def __init__(self, contracts: Mapping[str, CompiledContract]) -> None:
        self._contracts = dict(contracts)

    @classmethod
    def load(cls, directory: str | None = None) -> Self:
        """Loads the shipped contracts and packs, and those of `directory`, which override by id.

        It reads files, so do not call it in the event loop.

        Args:
            directory: the user's contracts and packs, with a `manifest.json`; None: only the shipped ones

        Raises:
            PromptError: a file is missing, unlisted, unreadable or invalid, its hash differs from the manifest, or it names an
                unknown pack or variable. The error says which file, what was expected and what was found
        """
        return cls.of(prompt_sources(directory))

    @classmethod
    def of(cls, sources: Mapping[str, PromptSource]) -> Self:
        """Compiles contracts and packs, given by id. Raises PromptError as `load` does."""
        packs = {name: source for name, source in sources.items() if name.startswith("PRM-")}
        templates = {name: _template(source.text, file=source.file) for name, source in packs.items()}
        contracts: dict[str, CompiledContract] = {}
        for contract_id, source in sources.items():
            if contract_id not in packs:
                contract = contract_of(contract_id, source.text, source.file)
                spec = contract.spec
                if spec.prompt_pack_id not in packs:
                    raise PromptError(
                        f"{source.file}: prompt_pack_id: expected one of {sorted(packs)}, found {spec.prompt_pack_id!r}"
                    )
                pack, template = packs[spec.prompt_pack_id], templates[spec.prompt_pack_id]
                contracts[contract_id] = CompiledContract(contract, template, pack.hash)
                _check_variables(spec, template, pack.file, source.file)
        return cls(contracts)

    @staticmethod
    def write_manifest(directory: str) -> None:
        """Writes `manifest.json` with the hash of every contract and pack in `directory`. Call it after each edit."""
        write_manifest(Path(directory))

    @property
    def contract_ids(self) -> tuple[str, ...]:
        """The ids of all contracts, sorted."""
        return tuple(sorted(self._contracts))

    def contract(self, contract_id: str) -> CompiledContract:
        """Returns the contract with this id. Raises PromptError if there is none."""
        try:
            return self._contracts[contract_id]
        except KeyError:
            raise PromptError(f"prompt contract {contract_id!r} is not known; expected one of {self.contract_ids}") from None


def _check_variables(spec: ContractFile, template: PackTemplate, pack_file: str, contract_file: str) -> None:
    known = spec.input_schema.get("properties")
    known = known if isinstance(known, dict) else {}
    if unknown := sorted(template.names - known.keys()):
        raise PromptError(
            f"{pack_file}: expected variables of {contract_file} ({', '.join(sorted(known)) or 'none'}), found {unknown}"
        )


_template: Final = lru_cache(maxsize=MAX_COMPILED_FILES)(compile_pack)
