"""The tests of FirnMQ; see the README for what each folder holds."""
