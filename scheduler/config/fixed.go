// SPDX-License-Identifier: MPL-2.0

package config

import "reflect"

// KeepFixed puts back what a running service cannot change, as it was in the
// configuration that it runs with, and returns the keys that were different.
func (c *Config) KeepFixed(running *Config) []string {
	if c.Listen.Advertise == "" { // made of the address when the service started
		c.Listen.Advertise = running.Listen.Advertise
	}
	var changed []string
	for _, part := range []struct {
		key     string
		now, to any // pointers of one type
	}{
		{"resource_name", &c.ResourceNames, &running.ResourceNames},
		{"memory_gb", &c.ModelMemoryMiB, &running.ModelMemoryMiB},
		{"nomad", &c.Nomad, &running.Nomad},
		{"listen", &c.Listen, &running.Listen},
		{"reservation", &c.Reservation, &running.Reservation},
		{"replica", &c.Replica, &running.Replica},
		{"ledger (but for prices)", &c.Ledger, &running.Ledger},
		{"telemetry", &c.Traces, &running.Traces},
	} {
		now, to := reflect.ValueOf(part.now).Elem(), reflect.ValueOf(part.to).Elem()
		if !reflect.DeepEqual(now.Interface(), to.Interface()) {
			now.Set(to)
			changed = append(changed, part.key)
		}
	}
	return changed
}
