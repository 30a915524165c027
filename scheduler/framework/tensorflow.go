// SPDX-License-Identifier: MPL-2.0

package framework

// tensorflow sets what TensorFlow itself reads. A hard memory limit is a
// logical device, which only the helper can declare; memory growth is a
// variable, and excludes it.
func tensorflow(setup *Setup, o Options, s Share) {
	if o.Memory == Dynamic {
		setup.Env["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
		if s.Vendor == "" || s.Vendor == nvidia {
			setup.Env["TF_GPU_ALLOCATOR"] = "cuda_malloc_async"
		}
	}
	if !o.MixedPrecision {
		return
	}
	precision := s.precision()
	setup.Env[EnvPrecision] = precision
	// NVIDIA's builds rewrite the graph on this variable; the helper sets the
	// Keras policy, which every build has.
	setup.Env["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"
}
