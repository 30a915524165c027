package device

// xidClass is what an XID means for the GPU that reported it.
type xidClass int

const (
	// xidUnknown is not in any list: recorded, and nothing more.
	xidUnknown xidClass = iota
	// xidApplication is the fault of a program; the GPU is well.
	xidApplication
	// xidInformation tells of something that was dealt with.
	xidInformation
	// xidFatal makes the GPU unusable until it was reset.
	xidFatal
	// xidLink is a fault of NVLink.
	xidLink
	// xidLost means that the GPU is gone.
	xidLost
)

// String names the class in logs.
func (c xidClass) String() string {
	return [...]string{"unknown", "application", "information", "fatal", "link", "lost"}[c]
}

// xidClasses gives every known XID its class. The lists follow NVIDIA's
// catalog of XIDs and the actions that it names.
type xidClasses map[uint64]xidClass

func defaultXIDs() xidClasses {
	classes := xidClasses{}
	for class, numbers := range map[xidClass][]uint64{
		xidApplication: {8, 11, 13, 25, 31, 32, 43, 45, 68, 69, 94},
		xidInformation: {63, 92, 154},
		xidFatal:       {46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158},
		// 144 to 150 are those of NVLink from Blackwell on.
		xidLink: {74, 144, 145, 146, 147, 148, 149, 150},
		xidLost: {79},
	} {
		for _, n := range numbers {
			classes[n] = class
		}
	}
	return classes
}

// configure moves XIDs into the class that the operator wants.
func (c xidClasses) configure(application, fatal []uint64) {
	for _, n := range application {
		c[n] = xidApplication
	}
	for _, n := range fatal {
		c[n] = xidFatal
	}
}
