"""Encrypts fields of payloads with one key per subject, so that destroying a key erases what the subject said."""

from kitchener.sealed_values import MARK, is_sealed
from kitchener.sealing.keyring import Erasure, Keyring
from kitchener.sealing.sealer import Sealer
from kitchener.sealing.subject_key import SubjectKey

__all__ = ["MARK", "Erasure", "Keyring", "Sealer", "SubjectKey", "is_sealed"]
