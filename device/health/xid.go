// SPDX-License-Identifier: MPL-2.0

package health

// Class is what an XID means for the GPU that reported it.
type Class int

const (
	// xidUnknown is not in any list: recorded, and nothing more.
	Unknown Class = iota
	// xidApplication is the fault of a program; the GPU is well.
	Application
	// xidInformation tells of something that was dealt with.
	Information
	// xidFatal makes the GPU unusable until it was reset.
	Fatal
	// xidLink is a fault of NVLink.
	Link
	// xidLost means that the GPU is gone.
	Lost
)

// String names the class in logs.
func (c Class) String() string {
	return [...]string{"unknown", "application", "information", "fatal", "link", "lost"}[c]
}

// classTable gives every known XID its class. The lists follow NVIDIA's
// catalog of XIDs and the actions that it names.
type classTable map[uint64]Class

func defaultXIDs() classTable {
	classes := classTable{}
	for class, numbers := range map[Class][]uint64{
		Application: {8, 11, 13, 25, 31, 32, 43, 45, 68, 69, 94},
		Information: {63, 92, 154},
		Fatal:       {46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158},
		// 144 to 150 are those of NVLink from Blackwell on.
		Link: {74, 144, 145, 146, 147, 148, 149, 150},
		Lost: {79},
	} {
		for _, n := range numbers {
			classes[n] = class
		}
	}
	return classes
}

// configure moves XIDs into the class that the operator wants.
func (c classTable) configure(application, fatal []uint64) {
	for _, n := range application {
		c[n] = Application
	}
	for _, n := range fatal {
		c[n] = Fatal
	}
}
