"""`kitchener ledger`."""
