// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestCeilingsOfTheOperator(t *testing.T) {
	node := Policy{PidsLimit: 10, DefaultSnapshotter: "overlayfs", AllowSnapshotters: []string{"native"}, AllowCDIDevices: []string{"a/b=*"}}
	for _, test := range []struct {
		change func(*Config)
		says   string
	}{
		{func(c *Config) { c.PidsLimit = 10 }, ""},
		{func(c *Config) { c.PidsLimit = 11 }, "pids_limit: 11 is above the 10"},
		{func(c *Config) { c.PidsLimit = -1 }, "pids_limit: -1 is above the 10"},
		{func(c *Config) { c.Snapshotter = "overlayfs" }, ""},
		{func(c *Config) { c.Snapshotter = "native" }, ""},
		{func(c *Config) { c.Snapshotter = "zfs" }, `snapshotter: "zfs" is not allowed`},
		{func(c *Config) { c.CDIDevices = []string{"x/y=1", "a/b=1"} }, `cdi_devices: "x/y=1"`},
	} {
		config := defaults()
		config.ImagePullTimeout = "5m"
		test.change(&config)
		err := config.Check(node)
		if (err == nil) != (test.says == "") || err != nil && !strings.HasPrefix(err.Error(), test.says) {
			t.Errorf("got %v, want %q", err, test.says)
		}
	}
	if (Config{PidsLimit: -1}).pids(Policy{}) != nil || *(Config{PidsLimit: 1}).pids(Policy{}).Limit != 1 {
		t.Error("pids_limit is not what was asked for")
	}
}

func TestNetworkModes(t *testing.T) {
	for _, test := range []struct {
		config                      Config
		host, bridge, group, leaves bool
	}{
		{Config{}, false, false, false, false},
		{Config{HostNetwork: true}, true, false, false, true},
		{Config{NetworkMode: "host"}, true, false, false, true},
		{Config{NetworkMode: "bridge"}, false, true, false, true},
		{Config{NetworkMode: "group"}, false, false, true, false},
		{Config{NetworkMode: "none"}, false, false, false, true},
	} {
		c := test.config
		if c.UsesHostNetwork() != test.host || c.UsesBridge() != test.bridge || c.UsesGroupNetwork() != test.group || c.LeavesGroupNetwork() != test.leaves {
			t.Errorf("%+v", test)
		}
	}
	if !(Config{IPCMode: "shareable"}).OffersIPC() || (Config{IPCMode: "host"}).OffersIPC() {
		t.Error("OffersIPC")
	}
	if (Config{}).ShmBytes() != 64<<20 || (Config{ShmSize: "1M"}).ShmBytes() != 1<<20 {
		t.Error("ShmBytes")
	}
	if got := (Config{Volumes: []string{"bad", "a:/a"}}).VolumeMounts(); len(got) != 1 || got[0].Target != "/a" {
		t.Errorf("got %v", got)
	}
}

func TestGuardedVariablesStay(t *testing.T) {
	got := KeepGuarded([]string{"A=own", "B=own"}, []string{"C=new", "A=theirs", "B=own"})
	if !slices.Equal(got, []string{"A=own", "B=own", "C=new"}) {
		t.Errorf("got %q", got)
	}
}

func TestParseSeccomp(t *testing.T) {
	if p, err := ParseSeccomp([]byte(`{"defaultAction":"SCMP_ACT_LOG"}`)); err != nil || p.DefaultAction != "SCMP_ACT_LOG" {
		t.Error(p, err)
	}
	for _, bad := range []string{`[]`, `{"listenerPath":"/x"}`, `{"listenerMetadata":"x"}`} {
		if _, err := ParseSeccomp([]byte(bad)); err == nil {
			t.Errorf("%s passed", bad)
		}
	}
}

func TestSharesOfBothKinds(t *testing.T) {
	for _, sharing := range []gpu.Sharing{gpu.SharingMPS, gpu.SharingHAMi} {
		s := state(uuidA, sharing)
		s.MPS.Generation = 7
		share, err := NewShare([]gpu.ReservedDevice{slicesOf(uuidA, 8)}, map[string]gpu.GPUState{uuidA: s}, GPURequest{})
		if err != nil {
			t.Fatal(err)
		}
		mps := sharing == gpu.SharingMPS
		if share.MPS != mps || share.HAMi == mps || (share.PipeDir() == "/mps/pipe") != mps || (share.Holdings[0].MPSGeneration == 7) != mps {
			t.Errorf("%s: %+v", sharing, share)
		}
	}
	for want, says := range map[GPURequest]string{
		{MemoryMiB: -1}: "gpu.memory: is negative", {ComputeMilli: 1001}: "gpu.compute: 1001 is not between", {ComputeMilli: -1}: "gpu.compute: -1",
		{ComputeLimitMilli: -1}: "gpu.compute_limit: -1 is not between",
	} {
		_, err := NewShare([]gpu.ReservedDevice{slicesOf(uuidA, 8)}, map[string]gpu.GPUState{uuidA: state(uuidA, gpu.SharingMPS)}, want)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: got %v, want %q", want, err, says)
		}
	}
}
