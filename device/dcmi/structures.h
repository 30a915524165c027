// The structures that functions of DCMI fill or take, as Huawei publishes them. The library
// that stands in for Huawei's fills the same.
typedef struct { unsigned char family[32], name[32], version[32]; unsigned int aicores; } Chip;
typedef struct { unsigned int vendor, subvendor, device, subdevice; int domain; unsigned int bus, slot, function; unsigned char reserved[32]; } PCI;
typedef struct { unsigned int device, vendor, subvendor, subdevice, slot, bus, function; } OldPCI;
typedef struct { unsigned int part[5]; } Die;
typedef struct { unsigned long long size; unsigned int mhz; unsigned long long used; int temperature; unsigned int bandwidth; } HBM;
typedef struct { unsigned long long size, available; unsigned int mhz; unsigned long page, pages, freePages; unsigned int used; unsigned char reserved[60]; } Memory;
typedef struct { int enabled; unsigned int single, dual, totalSingle, totalDual, isolatedSingle, isolatedDual; } ECC;
typedef struct { int pid; unsigned long bytes; } Process;

// Of vNPUs.
typedef struct { unsigned long long token, tokenMax, timeout; unsigned int group; unsigned char vip, reserved[31]; } Base;
typedef struct {
	float aic, aiv;
	unsigned short queues[8];
	unsigned long long memory;
	unsigned int ids[4];
	unsigned short cpus[5];
	unsigned int busy;
	unsigned long long memoryTotal, memoryFree;
	unsigned char reserved[12];
} Computing;
typedef struct { float units[6]; unsigned char reserved[32]; } Media;
typedef struct {
	unsigned int id;
	struct {
		char name[16];
		unsigned int status, inContainer, function, group;
		unsigned long long container;
		Base base;
		Computing computing;
		Media media;
	} info;
} VDevice;
typedef struct { unsigned int count, ids[32], groups, groupBits; Base base; Computing computing; Media media; } Total;
typedef struct { unsigned int id, group; char name[32]; unsigned char reserved[64]; } CreateIn;
typedef struct { unsigned int id, bus, slot, function, group; unsigned char reserved[32]; } CreateOut;

// Of messages about faults.
typedef struct { unsigned long long flags; unsigned int code; unsigned char severity, node, reserved[32]; } Filter;
typedef struct {
	unsigned int code;
	unsigned short device;
	unsigned char node, nodeID, part, partID, severity, assertion;
	int serial, message;
	unsigned long long raised;
	char name[256], more[32];
	unsigned char reserved[32];
} Fault;
typedef struct { int type; union { Fault fault; } of; } Event;
