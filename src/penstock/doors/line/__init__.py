"""The line door: text commands and the binary protocol on one port."""
