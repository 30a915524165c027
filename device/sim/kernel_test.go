// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"os"
	"path/filepath"
	"testing"
)

// Several kernels may be at work in one folder, one after the other and at once.
func TestKernelsShareAFolder(t *testing.T) {
	topology, err := ParseTopology("t.hcl", []byte("machine \"m\" {}\ngpu {\n model = \"MI210\"\n}\ngpu {\n model = \"Flex170\"\n}"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var all []*Kernel
	for range 3 {
		k, err := NewKernel(topology, Options{Dir: dir, BootID: "boot", Report: func(err error) { t.Error(err) }})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, k)
	}
	if err := Update(dir, topology.CardUUID(0), func(c *Condition) { c.Missing = true }); err != nil {
		t.Fatal(err)
	}
	for _, k := range all {
		k.Refresh()
	}
	if _, err := os.Stat(filepath.Join(all[0].Root(), "sys/bus/pci/devices", topology.CardPCI(0))); !os.IsNotExist(err) {
		t.Errorf("the missing card is there: %v", err)
	}
	trees, err := filepath.Glob(filepath.Join(dir, "tree-*"))
	if err != nil || len(trees) != 1 {
		t.Errorf("the folder has %v, %v", trees, err)
	}
}
