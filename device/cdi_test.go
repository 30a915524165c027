package device

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// specOf is a source that knows some devices.
type specOf []string

func (s specOf) CDISpec(kind string) (*specs.Spec, error) {
	if len(s) == 0 {
		return nil, errors.New("no driver")
	}
	spec := &specs.Spec{Version: "0.5.0", Kind: kind}
	for _, name := range s {
		spec.Devices = append(spec.Devices, specs.Device{Name: name})
	}
	return spec, nil
}

func TestOperatorsCDISpecComesFirst(t *testing.T) {
	operator, ours := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(operator, "nvidia.yaml"), `
cdiVersion: "0.5.0"
kind: nvidia.com/gpu
devices:
  - name: GPU-1
    containerEdits:
      deviceNodes:
        - path: /dev/null
`)
	writeFile(t, filepath.Join(operator, "broken.yaml"), "kind: [")
	c := &cdiNames{source: specOf{"GPU-1", "GPU-2"}, operatorDirs: []string{operator}, ourDir: ours}
	names, missing := c.resolve([]string{"GPU-1", "GPU-2"})
	if names["GPU-1"] != "nvidia.com/gpu=GPU-1" || !slices.Equal(missing, []string{"GPU-2"}) {
		t.Errorf("got %v, missing %v", names, missing)
	}
	if err := c.generate(); err != nil {
		t.Fatal(err)
	}
	names, missing = c.resolve([]string{"GPU-1", "GPU-2", "GPU-3"})
	if names["GPU-1"] != "nvidia.com/gpu=GPU-1" || names["GPU-2"] != ourKind+"=GPU-2" || !slices.Equal(missing, []string{"GPU-3"}) {
		t.Errorf("got %v, missing %v", names, missing)
	}
	if _, err := os.Stat(filepath.Join(ours, cdiFile)); err != nil {
		t.Error(err)
	}
}

func TestCDISpecThatCannotBeMadeIsAnError(t *testing.T) {
	c := &cdiNames{source: specOf{}, ourDir: t.TempDir()}
	if err := c.generate(); err == nil {
		t.Error("succeeded")
	}
}
