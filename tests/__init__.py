"""The tests of FirnMQ; ARCHITECTURE.md says what each folder holds."""
