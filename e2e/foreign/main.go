// SPDX-License-Identifier: MPL-2.0

// Command foreign is a device plugin by another author, for tests: it offers GPUs as
// nomad-device-nvidia does, which says by a variable which it gave, and as plugins do that
// hand in device nodes. It knows neither slices nor any of our attributes.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-gpu/nomad-gpu/e2e/foreign/offer"
)

func main() {
	plugins.Serve(func(hclog.Logger) any { return plugin{} })
}

type plugin struct{}

func (plugin) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{Type: base.PluginTypeDevice, PluginApiVersions: []string{device.ApiVersion010}, PluginVersion: "1.0.0", Name: offer.Plugin}, nil
}

func (plugin) ConfigSchema() (*hclspec.Spec, error) { return hclspec.NewObject(nil), nil }

func (plugin) SetConfig(*base.Config) error { return nil }

// Fingerprint sends the groups once; they never change.
func (plugin) Fingerprint(ctx context.Context) (<-chan *device.FingerprintResponse, error) {
	out := make(chan *device.FingerprintResponse, 1)
	groups := []*device.DeviceGroup{
		{Vendor: "nvidia", Type: "gpu", Name: offer.NVIDIAModel, Attributes: map[string]*structs.Attribute{"memory": structs.NewIntAttribute(32510, "MiB")}},
		{Vendor: "amd", Type: "gpu", Name: offer.AMDModel},
	}
	for i, ids := range [][]string{offer.NVIDIA, offer.AMD} {
		for _, id := range ids {
			groups[i].Devices = append(groups[i].Devices, &device.Device{ID: id, Healthy: true})
		}
	}
	out <- device.NewFingerprint(groups...)
	go func() {
		<-ctx.Done()
		close(out)
	}()
	return out, nil
}

// Reserve names NVIDIA's GPUs by the variable, and hands in the nodes of AMD's.
func (plugin) Reserve(ids []string) (*device.ContainerReservation, error) {
	r := &device.ContainerReservation{Envs: map[string]string{}}
	for _, id := range ids {
		switch id {
		case offer.AMD[0]:
			r.Devices = append(r.Devices, &device.DeviceSpec{TaskPath: offer.AMDNode, HostPath: "/dev/full", CgroupPerms: "rw"})
		case offer.NVIDIA[0], offer.NVIDIA[1]:
			if before := r.Envs["NVIDIA_VISIBLE_DEVICES"]; before != "" {
				id = before + "," + id
			}
			r.Envs["NVIDIA_VISIBLE_DEVICES"] = id
		default:
			return nil, fmt.Errorf("unknown device %q", id)
		}
	}
	return r, nil
}

// Stats tells nothing.
func (plugin) Stats(ctx context.Context, _ time.Duration) (<-chan *device.StatsResponse, error) {
	out := make(chan *device.StatsResponse)
	go func() {
		<-ctx.Done()
		close(out)
	}()
	return out, nil
}
