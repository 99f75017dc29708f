# Make builds nothing here. Cargo builds the programs (./x), and `mpu up` has the kernel's own makefiles build the module.
.PHONY: help
help:
	@echo 'MPU is not built with make. Begin with one of these; README.md says how to install it.'
	@echo '  ./x demo    boots a real kernel and shows nvidia-smi in a container, before and after; needs no GPU'
	@echo '  ./x test    runs every check'
