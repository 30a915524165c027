// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestClosenessIsReadAsItWasWritten(t *testing.T) {
	c := Closeness{
		{By: NearNVSwitch, N: 18, UUIDs: []string{"GPU-c", "GPU-a"}},
		{By: NearNVLink, N: 4, UUIDs: []string{"GPU-b", "GPU-d"}},
		{By: NearNVLink, N: 2, UUIDs: []string{"GPU-d", "GPU-e"}},
		{By: NearNVLink, N: 2, UUIDs: []string{"GPU-a", "GPU-e"}},
		{By: NearNUMA, N: 1, UUIDs: []string{"GPU-a"}},
	}
	const want = "numa:1=GPU-a;nvlink:2=GPU-a,GPU-e;nvlink:2=GPU-d,GPU-e;nvlink:4=GPU-b,GPU-d;nvswitch:18=GPU-a,GPU-c"
	if got := c.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	back, err := ParseCloseness(want)
	if err != nil || !reflect.DeepEqual(back, c.sorted()) {
		t.Errorf("read back as %v, %v", back, err)
	}
	if peers := back.LinkPeers("GPU-a"); !slices.Equal(peers, []string{"GPU-c", "GPU-e"}) {
		t.Errorf("peers are %v", peers)
	}
	if node, known := back.NUMANode("GPU-a"); !known || node != 1 {
		t.Errorf("NUMA node %d, %v", node, known)
	}
	if _, known := back.NUMANode("GPU-b"); known {
		t.Error("the NUMA node of GPU-b is known")
	}
	if part := back.Around("GPU-b", "GPU-c").String(); part != "nvlink:4=GPU-b,GPU-d;nvswitch:18=GPU-a,GPU-c" {
		t.Errorf("the part around two GPUs is %s", part)
	}
}

func TestClosenessOfALaterRelease(t *testing.T) {
	c, err := ParseCloseness("cxl:3=GPU-a,GPU-b;numa:0=GPU-a")
	if err != nil || c.String() != "numa:0=GPU-a" {
		t.Errorf("got %v, %v", c, err)
	}
	if c, err := ParseCloseness(""); err != nil || len(c) != 0 {
		t.Errorf("nothing is %v, %v", c, err)
	}
	for _, bad := range []string{"GPU-a,GPU-b", "numa=GPU-a", "numa:x=GPU-a", "numa:-1=GPU-a", "numa:0=", "numa:0=GPU-a;"} {
		if _, err := ParseCloseness(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// A GPU's peers are all that any link joins to it, wherever that is said; a NUMA node is
// no link.
func TestPeersAndNodesInEveryPlace(t *testing.T) {
	for text, want := range map[string]struct {
		peers string
		node  int
	}{
		"":                                      {"", -1},
		"numa:0=GPU-a,GPU-b":                    {"", 0},
		"numa:1=GPU-b;numa:3=GPU-a":             {"", 3},
		"nvlink:4=GPU-a,GPU-b":                  {"GPU-b", -1},
		"numa:2=GPU-a,GPU-c;xgmi:4=GPU-a,GPU-b": {"GPU-b", 2},
		"hccs:7=GPU-a,GPU-b;nvlink:1=GPU-a,GPU-b;nvswitch:18=GPU-a,GPU-c": {"GPU-b GPU-c", -1},
		"nvlink:4=GPU-b,GPU-c": {"", -1},
	} {
		c, err := ParseCloseness(text)
		if err != nil {
			t.Fatal(err)
		}
		node, known := c.NUMANode("GPU-a")
		if peers := strings.Join(c.LinkPeers("GPU-a"), " "); peers != want.peers || known != (want.node >= 0) || known && node != want.node {
			t.Errorf("%q: peers %q, node %d, %v", text, peers, node, known)
		}
	}
}

func FuzzParseCloseness(f *testing.F) {
	f.Add("numa:0=GPU-a,GPU-b;nvlink:4=GPU-a,GPU-b")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCloseness(text)
		if err != nil {
			return
		}
		again, err := ParseCloseness(c.String())
		if err != nil || again.String() != c.String() {
			t.Fatalf("%q became %q, then %q: %v", text, c.String(), again.String(), err)
		}
	})
}
