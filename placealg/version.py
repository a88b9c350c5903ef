"""The version of placealg, as it is installed and as certificates and `--version` say it."""

VERSION = "0.1.0"
