// SPDX-License-Identifier: MPL-2.0

package ascend

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/guard"
)

// layoutTimeout is how long it may take to end and make a device's vNPUs.
const layoutTimeout = time.Minute

// Layout gives a device the vNPUs of some templates. Those that it has of them stay.
func (b *Backend) Layout(uuid string, templates []string) error {
	b.refresh()
	s, known := b.found.Lookup(uuid)
	if !known {
		return fmt.Errorf("device %s is not there", uuid)
	}
	err, callErr := guard.CallFor(b.guard, s.position(), layoutTimeout, func() error {
		b.calling.RLock()
		defer b.calling.RUnlock()
		return s.layOut(slices.Clone(templates))
	})
	return errors.Join(callErr, err)
}

// layOut ends the vNPUs that are not wanted, before it makes those that are missing. Where
// one cannot be made, there are those again that were there before.
func (s seen) layOut(missing []string) error {
	if err := s.fit(missing); err != nil {
		return err
	}
	ids, err := s.device.VNPUs()
	if err != nil {
		return fmt.Errorf("list vNPUs: %w", err)
	}
	var ended []string
	for _, id := range ids {
		v, err := s.device.VNPU(id)
		if at := slices.Index(missing, v.Template); err == nil && at >= 0 {
			missing = slices.Delete(missing, at, at+1)
			continue
		}
		if err := s.device.Destroy(id); err != nil {
			return errors.Join(fmt.Errorf("destroy vNPU %d: %w", id, err), s.restore(nil, ended))
		}
		if err == nil {
			ended = append(ended, v.Template)
		}
	}
	var made []int
	for _, template := range missing {
		id, err := s.device.Create(template)
		if err != nil {
			return errors.Join(fmt.Errorf("create a vNPU of template %s: %w", template, err), s.restore(made, ended))
		}
		made = append(made, id)
	}
	return nil
}

// restore ends the vNPUs that were made, and makes those that were ended.
func (s seen) restore(made []int, ended []string) error {
	var failed error
	for _, id := range made {
		failed = errors.Join(failed, s.device.Destroy(id))
	}
	for _, template := range ended {
		_, err := s.device.Create(template)
		failed = errors.Join(failed, err)
	}
	return failed
}

// fit says why templates cannot fit a device together, by the AI cores that begin their
// names: existing vNPUs are not ended for a layout that cannot be.
func (s seen) fit(templates []string) error {
	chip, err := s.device.Chip()
	if err != nil {
		return fmt.Errorf("ask which processor it is: %w", err)
	}
	sum := 0
	for _, template := range templates {
		var cores int
		if _, err := fmt.Sscanf(template, "vir%2d", &cores); err == nil {
			sum += cores
		}
	}
	if sum > chip.AICores {
		return fmt.Errorf("the templates have %d AI cores together, the device has %d", sum, chip.AICores)
	}
	return nil
}
