"""bcc, its cache and the kernel's definitions; the only importer of bcc."""
