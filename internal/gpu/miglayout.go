// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A GPU whose MIG layout follows demand is cut again by an order: the device plugin tells
// in AttrMIGDemand which instances it has and may have, the placement service writes an
// order into the node's dynamic metadata, and the plugin carries it out or says why not.

// AttrMIGDemand is the attribute of a group of MIG instances that holds a MIGDemand for
// each GPU whose layout follows demand, as JSON.
const AttrMIGDemand = "unique.mig_demand"

// MIGOrderMeta begins the key of an order in the metadata of a node; the UUID of the GPU
// follows. Keys that begin with "unique." are not part of Nomad's node class.
const MIGOrderMeta = "unique.nomad_gpu_mig."

// MIGOrderVersion is that of orders.
const MIGOrderVersion = 1

// MIGProfile is a size of instances: how many of the GPU's memory slices it takes, at which
// of them it may begin, and how many instances of it the GPU can have.
type MIGProfile struct {
	Name   string `json:"name"`
	Size   int    `json:"size"`
	Starts []int  `json:"starts"`
	Most   int    `json:"most"`
	// MemoryMiB and Milli are the memory of an instance and its part of the GPU's compute; 0
	// where an older plugin does not tell them.
	MemoryMiB int64 `json:"memory_mib,omitempty"`
	Milli     int64 `json:"milli,omitempty"`
	// Allowed profiles may be made; others are in the way only.
	Allowed bool `json:"allowed,omitempty"`
	// Group is the device group that an instance would be offered in, where it is not
	// nvidia/mig/<name>; "*" stands for an index. Parts are its slices or replicas; 0 is whole.
	Group string `json:"group,omitempty"`
	Parts int64  `json:"parts,omitempty"`
}

// MIGPlace is an instance's size, and the memory slice at which it begins.
type MIGPlace struct {
	Profile string `json:"profile"`
	Start   int    `json:"start"`
}

func (p MIGPlace) String() string { return fmt.Sprintf("%s@%d", p.Profile, p.Start) }

// MIGInstance is an instance that is there.
type MIGInstance struct {
	UUID string `json:"uuid"`
	MIGPlace
}

// MIGDemand is what the device plugin tells of a GPU whose layout follows demand.
type MIGDemand struct {
	GPU string `json:"gpu"`
	// Index is the GPU's number in the node; nil from an older plugin.
	Index *int `json:"index,omitempty"`
	// Profiles are those that the GPU can have.
	Profiles  []MIGProfile  `json:"profiles"`
	Instances []MIGInstance `json:"instances"`
	// Least are instances that must remain on the GPUs of Pool, the node's GPUs with the same
	// rule; AtOnce bounds how many of them are cut at one time, PerDay how often each.
	Least  []string `json:"least,omitempty"`
	Pool   int      `json:"pool"`
	AtOnce int      `json:"at_once"`
	PerDay int      `json:"per_day"`
	// Cuts are the re-cuts of the last day, in seconds since 1970, latest last.
	Cuts []int64 `json:"cuts,omitempty"`
	// Doing is the order that is being carried out.
	Doing string `json:"doing,omitempty"`
	// Refused is the order that was last refused, or undone, and Why.
	Refused string `json:"refused,omitempty"`
	Why     string `json:"why,omitempty"`
}

// Name is what people call the GPU.
func (d *MIGDemand) Name() string {
	if d.Index == nil {
		return "GPU " + d.GPU
	}
	return fmt.Sprintf("GPU %d", *d.Index)
}

// MIGOrder asks for a GPU to be cut again: Remove are instances by UUID, Make takes their
// place. Whatever is not named stays.
type MIGOrder struct {
	Version int        `json:"version"`
	ID      string     `json:"id"`
	Remove  []string   `json:"remove"`
	Make    []MIGPlace `json:"make"`
	// For says for what, for people.
	For string `json:"for,omitempty"`
}

// ParseMIGOrder reads an order. One of a later version is refused.
func ParseMIGOrder(text string) (MIGOrder, error) {
	var o MIGOrder
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&o); err != nil {
		return o, fmt.Errorf("read MIG order: %w", err)
	}
	switch {
	case o.Version != MIGOrderVersion:
		return o, fmt.Errorf("read MIG order %q: version %d is not valid (%d)", o.ID, o.Version, MIGOrderVersion)
	case o.ID == "":
		return o, fmt.Errorf("read MIG order: id is empty")
	case len(o.Make) == 0:
		return o, fmt.Errorf("read MIG order %q: make is empty; a GPU keeps at least one instance", o.ID)
	}
	return o, nil
}

// String is the order as metadata has it.
func (o MIGOrder) String() string {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return string(text)
}

// ParseMIGDemand reads the attribute.
func ParseMIGDemand(text string) ([]MIGDemand, error) {
	if text == "" {
		return nil, nil
	}
	var all []MIGDemand
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("read %s: %w", AttrMIGDemand, err)
	}
	return all, nil
}

// FormatMIGDemand is the attribute; empty without GPUs.
func FormatMIGDemand(all []MIGDemand) string {
	if len(all) == 0 {
		return ""
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return string(text)
}

// MIGMilli is an instance's part of a GPU's compute by the name of its profile, such as
// "3g.40gb", and the GPU's type: 0 where the name does not tell.
func MIGMilli(profile, gpuType string) int64 {
	all := int64(7)
	if gpuType == "A30" || strings.HasPrefix(gpuType, "RTX") {
		all = 4
	}
	name := profile
	if compute, rest, found := strings.Cut(profile, "c."); found { // "1c.3g.40gb"
		profile, name = compute+"g", rest
	}
	n, _, found := strings.Cut(profile, "g")
	slices, err := strconv.ParseInt(n, 10, 64)
	if !found || err != nil || slices < 1 || slices > all || !strings.Contains(name, "g.") {
		return 0
	}
	return slices * MilliPerGPU / all
}

// MIGProfileOf finds a profile by its name.
func MIGProfileOf(profiles []MIGProfile, name string) (MIGProfile, bool) {
	at := slices.IndexFunc(profiles, func(p MIGProfile) bool { return p.Name == name })
	if at < 0 {
		return MIGProfile{}, false
	}
	return profiles[at], true
}

// CheckMIGPlaces says why instances cannot lie beside each other on a GPU: a profile that it
// does not have, a place that the profile does not have, two that overlap, or too many of one
// profile.
func CheckMIGPlaces(profiles []MIGProfile, places []MIGPlace) error {
	count, taken := map[string]int{}, map[int]MIGPlace{}
	for _, at := range places {
		p, known := MIGProfileOf(profiles, at.Profile)
		if !known {
			return fmt.Errorf("profile %q is not valid (%s)", at.Profile, strings.Join(MIGProfileNames(profiles), ", "))
		}
		if !slices.Contains(p.Starts, at.Start) {
			return fmt.Errorf("start %d of profile %q is not valid (%v)", at.Start, at.Profile, p.Starts)
		}
		if count[at.Profile]++; count[at.Profile] > p.Most {
			return fmt.Errorf("%d instances of profile %q are not valid (at most %d)", count[at.Profile], at.Profile, p.Most)
		}
		for slice := at.Start; slice < at.Start+p.Size; slice++ {
			if other, there := taken[slice]; there {
				return fmt.Errorf("%s and %s overlap", other, at)
			}
			taken[slice] = at
		}
	}
	return nil
}

// MIGProfileNames lists the names of profiles.
func MIGProfileNames(profiles []MIGProfile) []string {
	names := make([]string, len(profiles))
	for n, p := range profiles {
		names[n] = p.Name
	}
	return names
}
