// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Index answers Reserve: every instance of a plan by its ID.
type Index map[string]entry

type entry struct {
	unit *Unit
	n    int
}

func NewIndex(units []*Unit) Index {
	c := Index{}
	for _, u := range units {
		for n, id := range u.IDs() {
			c[id] = entry{u, n}
		}
	}
	return c
}

// Reserve hands instances out. Nomad asks once per device block of a task and
// keeps the answer for the life of the allocation.
func (c Index) Reserve(ids []string) (gpu.Reservation, *device.ContainerReservation, error) {
	r, units, err := c.collect(ids)
	if err != nil {
		return r, nil, err
	}
	envs, err := environment(r, units)
	return r, &device.ContainerReservation{Envs: envs}, err
}

// collect adds instances up, by the devices that they lie on.
func (c Index) collect(ids []string) (gpu.Reservation, []*Unit, error) {
	r := gpu.Reservation{Version: gpu.ReservationVersion}
	if len(ids) == 0 {
		return r, nil, errors.New("reserve devices: no instance is named")
	}
	var units []*Unit
	for _, id := range slices.Sorted(slices.Values(ids)) {
		e, err := c.find(id)
		if err != nil {
			return r, nil, err
		}
		if len(units) > 0 && units[0].Group != e.unit.Group {
			return r, nil, fmt.Errorf("reserve %q: it is of group %s, but %q is of %s; one request is served from one group",
				id, e.unit.Group, ids[0], units[0].Group)
		}
		if at := slices.Index(units, e.unit); at < 0 {
			units = append(units, e.unit)
			r.Devices = append(r.Devices, e.unit.reserved())
		} else if e.unit.Sharing.Mode == gpu.ModeWhole {
			return r, nil, fmt.Errorf("reserve %q: it is named twice", id)
		}
		if d := &r.Devices[slices.Index(units, e.unit)]; d.Mode != gpu.ModeWhole {
			if slices.Contains(d.Slices, e.n) {
				return r, nil, fmt.Errorf("reserve %q: it is named twice", id)
			}
			d.Slices = append(d.Slices, e.n)
		}
	}
	r.Vendor = units[0].GPU.Vendor
	for i, u := range units {
		u.addUp(&r.Devices[i])
	}
	return r, units, nil
}

// find refuses what must not be handed out and says what to do.
func (c Index) find(id string) (entry, error) {
	e, ok := c[id]
	if !ok {
		if _, _, err := gpu.ParseSliceID(id); err != nil {
			return e, fmt.Errorf("reserve: %w", err)
		}
		return e, fmt.Errorf("reserve %q: this node has no such device; its GPUs have changed since Nomad last heard of them, submit the job again", id)
	}
	if trouble := e.unit.trouble(e.n); trouble != (gpu.Health{}) {
		return e, fmt.Errorf("reserve %q: the device takes no new work: %s", id, trouble)
	}
	return e, nil
}

// reserved is a reservation of the unit without any slice yet.
func (u *Unit) reserved() gpu.ReservedDevice {
	if u.Sharing.Mode == gpu.ModeWhole {
		return gpu.ReservedDevice{UUID: u.UUID, Mode: gpu.ModeWhole}
	}
	return gpu.ReservedDevice{UUID: u.UUID, Mode: u.Sharing.Mode, Of: u.Slices, BurstMilli: u.Sharing.BurstMilli}
}

// addUp completes a reservation once its slices are known.
func (u *Unit) addUp(d *gpu.ReservedDevice) {
	slices.Sort(d.Slices)
	switch d.Mode {
	case gpu.ModeWhole:
		d.MemoryMiB, d.Milli, d.BurstMilli = u.MemoryMiB, gpu.MilliPerGPU, gpu.MilliPerGPU
	case gpu.ModeSlice:
		d.MemoryMiB = int64(len(d.Slices)) * u.Sharing.SliceMiB
		d.Milli = int64(len(d.Slices)) * gpu.MilliPerGPU / int64(d.Of)
		if d.Whole() {
			d.MemoryMiB, d.Milli = u.MemoryMiB, gpu.MilliPerGPU
		}
	}
}

// environment is the contract with our driver, and the conventional variables
// with which any other driver gives a task with one device block its share.
func environment(r gpu.Reservation, units []*Unit) (map[string]string, error) {
	value, err := r.EnvValue()
	if err != nil {
		return nil, fmt.Errorf("reserve: %w", err)
	}
	envs := visible[units[0].GPU.Vendor](units)
	if units[0].Sharing.Mechanism == gpu.SharingSuspend {
		envs = seatsOnly()
	}
	envs[r.EnvKey()] = value
	if d, u := r.Devices[0], units[0]; len(units) == 1 && !d.Whole() {
		maps.Copy(envs, u.limits(d))
	}
	return envs, nil
}

// limits are what makes a CUDA program keep to its share. HAMi-core keeps the limits of the
// first program in a file: each reservation has its own, or a later task would have them.
func (u *Unit) limits(d gpu.ReservedDevice) map[string]string {
	share := ShareOf(d)
	switch {
	case u.Sharing.Mechanism == gpu.SharingMPS && u.MPS != nil:
		env := gpu.MPSEnv(u.MPS.PipeDir, u.MPS.LogDir, share)
		env[gpu.EnvMPSShmDir] = u.MPS.ShmDir
		return env
	case u.Sharing.Mechanism == gpu.SharingHAMi && u.HAMi != nil:
		env := gpu.HAMiEnv(u.HAMi.Library, filepath.Join("/tmp", "nomad-gpu-"+rand.Text()+".cache"), share)
		env["LD_PRELOAD"] = u.HAMi.Library
		return env
	default:
		return nil
	}
}

// ShareOf is what a task of another driver may use of a part of a device.
func ShareOf(d gpu.ReservedDevice) gpu.Share {
	share := gpu.Share{MemoryMiB: d.MemoryMiB, LimitMilli: d.BurstMilli}
	if d.Mode == gpu.ModeSlice {
		share.LimitMilli = min(d.Milli, d.BurstMilli)
	}
	return share
}

// seatsOnly is what other drivers are told of a device that only tasks of ours can have
// a seat on: no program sees it.
func seatsOnly() map[string]string {
	return map[string]string{
		gpu.EnvNVIDIAVisible: "void", gpu.EnvCUDAVisible: "void",
		"GPU_REFUSED": "tasks on this GPU step aside for each other (sharing = \"suspend\"), which only the containerd driver can have them do: write driver = \"containerd\"",
	}
}
