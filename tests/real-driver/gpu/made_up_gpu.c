// SPDX-License-Identifier: GPL-2.0
/*
 * A separate PCI bus with one device that looks like an NVIDIA GPU while NVIDIA's driver probes it: ids, base address registers, capabilities,
 * and two registers that identify the chip. All other registers read as zero.
 *
 * Its memory is RAM that mem= keeps from the guest's kernel. Independent of the driver.
 */
#include <linux/io.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <asm/pci.h>

static ulong base = 0x40000000;
module_param(base, ulong, 0444);
MODULE_PARM_DESC(base, "where the RAM begins that the kernel does not use");
static ushort device = 0x1eb8;
module_param(device, ushort, 0444);
MODULE_PARM_DESC(device, "PCI device id (T4)");
static uint boot_0 = 0x164000a1;
module_param(boot_0, uint, 0444);
MODULE_PARM_DESC(boot_0, "NV_PMC_BOOT_0: which chip (TU104)");
static uint boot_42 = 0x164a1000;
module_param(boot_42, uint, 0444);
MODULE_PARM_DESC(boot_42, "NV_PMC_BOOT_42: the same in the newer form");

#define NV_PMC_BOOT_0 0x0
#define NV_PMC_BOOT_42 0xa00

#define REGISTERS SZ_16M
#define FRAMEBUFFER SZ_256M
#define INSTANCE SZ_32M
#define WINDOW SZ_512M

#define CAP_MSI 0x68
#define CAP_EXPRESS 0x78

/* Any line will do: it never fires. */
#define LINE 11

static u8 config[PCI_CFG_SPACE_EXP_SIZE];
static struct pci_bus *bus;
/* A separate domain: all bus numbers of the machine are in domain 0. */
static struct pci_sysdata sysdata = { .domain = 1, .node = NUMA_NO_NODE };
static struct resource window = { .name = "made-up GPU", .flags = IORESOURCE_MEM };
static struct resource numbers = { .name = "made-up GPU's bus", .start = 0, .end = 0, .flags = IORESOURCE_BUS };

static void put16(int at, u16 value)
{
	memcpy(config + at, &value, sizeof(value));
}

static void put32(int at, u32 value)
{
	memcpy(config + at, &value, sizeof(value));
}

static bool exists(unsigned int function, int at, int size)
{
	return function == 0 && at + size <= sizeof(config);
}

static int read_config(struct pci_bus *of, unsigned int function, int at, int size, u32 *value)
{
	PCI_SET_ERROR_RESPONSE(value);
	if (!exists(function, at, size))
		return PCIBIOS_DEVICE_NOT_FOUND;
	*value = 0;
	memcpy(value, config + at, size);
	return PCIBIOS_SUCCESSFUL;
}

/* The writable bits of a base address; the others encode the region's size. */
static bool base_address(int at, u32 *writable, u32 *fixed)
{
	*fixed = 0;
	switch (at) {
	case PCI_BASE_ADDRESS_0:
		*writable = ~(REGISTERS - 1);
		return true;
	case PCI_BASE_ADDRESS_1:
		*writable = ~(FRAMEBUFFER - 1);
		*fixed = PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH;
		return true;
	case PCI_BASE_ADDRESS_3:
		*writable = ~(INSTANCE - 1);
		*fixed = PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH;
		return true;
	case PCI_BASE_ADDRESS_2:
	case PCI_BASE_ADDRESS_4:
		*writable = ~0;
		return true;
	case PCI_BASE_ADDRESS_5:
	case PCI_ROM_ADDRESS:
		*writable = 0;
		return true;
	}
	return false;
}

static int write_config(struct pci_bus *of, unsigned int function, int at, int size, u32 value)
{
	u32 writable, fixed;

	if (!exists(function, at, size))
		return PCIBIOS_DEVICE_NOT_FOUND;
	if (base_address(at, &writable, &fixed))
		put32(at, (value & writable) | fixed);
	else if (at == PCI_COMMAND || at == PCI_INTERRUPT_LINE || (at >= CAP_MSI && at < PCI_CFG_SPACE_SIZE))
		memcpy(config + at, &value, size);
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops ops = { .read = read_config, .write = write_config };

static void fill_config(void)
{
	put16(PCI_VENDOR_ID, PCI_VENDOR_ID_NVIDIA);
	put16(PCI_DEVICE_ID, device);
	put16(PCI_COMMAND, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	put16(PCI_STATUS, PCI_STATUS_CAP_LIST);
	config[PCI_REVISION_ID] = 0xa1;
	put16(PCI_CLASS_DEVICE, PCI_CLASS_DISPLAY_3D);
	put32(PCI_BASE_ADDRESS_0, base);
	put32(PCI_BASE_ADDRESS_1, (base + FRAMEBUFFER) | PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH);
	put32(PCI_BASE_ADDRESS_3, (base + INSTANCE) | PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH);
	put16(PCI_SUBSYSTEM_VENDOR_ID, PCI_VENDOR_ID_NVIDIA);
	put16(PCI_SUBSYSTEM_ID, 0x12a2);
	config[PCI_CAPABILITY_LIST] = CAP_MSI;
	config[PCI_INTERRUPT_LINE] = LINE;
	config[PCI_INTERRUPT_PIN] = 1;

	config[CAP_MSI] = PCI_CAP_ID_MSI;
	config[CAP_MSI + PCI_CAP_LIST_NEXT] = CAP_EXPRESS;
	put16(CAP_MSI + PCI_MSI_FLAGS, PCI_MSI_FLAGS_64BIT);

	config[CAP_EXPRESS] = PCI_CAP_ID_EXP;
	put16(CAP_EXPRESS + PCI_EXP_FLAGS, 2 | PCI_EXP_TYPE_ENDPOINT << 4);
	put32(CAP_EXPRESS + PCI_EXP_DEVCAP, PCI_EXP_DEVCAP_RBER);
	put32(CAP_EXPRESS + PCI_EXP_LNKCAP, PCI_EXP_LNKCAP_SLS_8_0GB | 16 << 4);
	put16(CAP_EXPRESS + PCI_EXP_LNKSTA, PCI_EXP_LNKSTA_CLS_8_0GB | 16 << 4);
}

static int fill_registers(struct pci_dev *dev)
{
	u32 *registers = memremap(pci_resource_start(dev, 0), REGISTERS, MEMREMAP_WB);

	if (!registers)
		return -ENOMEM;
	memset(registers, 0, REGISTERS);
	registers[NV_PMC_BOOT_0 / 4] = boot_0;
	registers[NV_PMC_BOOT_42 / 4] = boot_42;
	memunmap(registers);
	return 0;
}

static void remove_gpu(void)
{
	pci_lock_rescan_remove();
	pci_stop_root_bus(bus);
	pci_remove_root_bus(bus);
	pci_unlock_rescan_remove();
}

static int __init made_up_gpu_init(void)
{
	LIST_HEAD(resources);
	struct pci_dev *dev;
	int error;

	fill_config();
	window.start = base;
	window.end = base + WINDOW - 1;
	pci_add_resource(&resources, &window);
	pci_add_resource(&resources, &numbers);
	pci_lock_rescan_remove();
	bus = pci_create_root_bus(NULL, 0, &ops, &sysdata, &resources);
	if (!bus) {
		pci_unlock_rescan_remove();
		pci_free_resource_list(&resources);
		return -ENODEV;
	}
	pci_scan_child_bus(bus);
	pci_bus_size_bridges(bus);
	pci_bus_assign_resources(bus);
	pci_unlock_rescan_remove();
	dev = pci_get_slot(bus, 0);
	if (!dev) {
		remove_gpu();
		return -ENODEV;
	}
	/* The kernel may have moved the regions. */
	error = pci_resource_start(dev, 0) ? fill_registers(dev) : -ENOSPC;
	dev->irq = LINE;
	pci_dev_put(dev);
	if (error) {
		remove_gpu();
		return error;
	}
	pci_lock_rescan_remove();
	pci_bus_add_devices(bus);
	pci_unlock_rescan_remove();
	return 0;
}

static void __exit made_up_gpu_exit(void)
{
	remove_gpu();
}

module_init(made_up_gpu_init);
module_exit(made_up_gpu_exit);
MODULE_DESCRIPTION("A PCI bus with a made-up NVIDIA GPU on it, for tests");
MODULE_LICENSE("GPL");
