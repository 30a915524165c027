package gpu

import (
	"reflect"
	"slices"
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
	if peers := back.NVLinkPeers("GPU-a"); !slices.Equal(peers, []string{"GPU-c", "GPU-e"}) {
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
