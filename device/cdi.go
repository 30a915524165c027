package device

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

const (
	// operatorKind is the kind of the specs that operators make with nvidia-ctk.
	operatorKind = "nvidia.com/gpu"
	// ourKind is the kind of the specs that the plugin generates. It differs from
	// the operator's because two specs with one name cancel each other.
	ourKind = "nomad-gpu/nvidia"
	// cdiFile is the generated spec's name below the state directory's cdi folder.
	cdiFile = "nomad-gpu-nvidia.json"
)

// cdiNames finds, and where need be makes, the CDI names of devices.
type cdiNames struct {
	source cdiSource
	// operatorDirs are where the operator's specs lie, ourDir where ours go.
	operatorDirs []string
	ourDir       string

	mu        sync.Mutex
	generated map[string]bool
}

// resolve returns the CDI name of each device, and the devices that have none
// yet. The operator's spec comes first.
func (c *cdiNames) resolve(uuids []string) (names map[string]string, missing []string) {
	names = map[string]string{}
	operator := c.operatorNames()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, uuid := range uuids {
		switch {
		case operator[uuid]:
			names[uuid] = operatorKind + "=" + uuid
		case c.generated[uuid]:
			names[uuid] = ourKind + "=" + uuid
		default:
			missing = append(missing, uuid)
		}
	}
	return names, missing
}

// operatorNames are the devices that the operator's specs name.
func (c *cdiNames) operatorNames() map[string]bool {
	names := map[string]bool{}
	if len(c.operatorDirs) == 0 {
		return names
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(c.operatorDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return names
	}
	for _, qualified := range cache.ListDevices() {
		if d := cache.GetDevice(qualified); d != nil && d.GetSpec().Kind == operatorKind {
			names[d.Name] = true
		}
	}
	return names
}

// generate makes our spec, of all devices that are there. It asks the driver and
// reads its libraries, which can take long.
func (c *cdiNames) generate() error {
	spec, err := c.source.CDISpec(ourKind)
	if err != nil {
		return fmt.Errorf("generate CDI spec: %w", err)
	}
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return fmt.Errorf("encode CDI spec: %w", err)
	}
	if err := statedir.WriteFile(filepath.Join(c.ourDir, cdiFile), text, 0o644); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generated = map[string]bool{}
	for _, d := range spec.Devices {
		c.generated[d.Name] = true
	}
	return nil
}
