// SPDX-License-Identifier: MPL-2.0

package spec

import "github.com/nomad-gpu/nomad-gpu/internal/taskconfig"

// The config block of a task, under the names that this package and its callers use.
type (
	Config      = taskconfig.Config
	Policy      = taskconfig.Policy
	Mistake     = taskconfig.Mistake
	Mistakes    = taskconfig.Mistakes
	Auth        = taskconfig.Auth
	Mount       = taskconfig.Mount
	MountConfig = taskconfig.MountConfig
	Device      = taskconfig.Device
	GPURequest  = taskconfig.GPURequest
)
