// SPDX-License-Identifier: MPL-2.0

package api

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
)

var reservationID = regexp.MustCompile(`^[A-Za-z0-9-]{0,64}$`)

// images are examples; the author writes another.
var images = map[framework.Kind]string{
	framework.PyTorch:    "docker.io/pytorch/pytorch:latest",
	framework.TensorFlow: "docker.io/tensorflow/tensorflow:latest-gpu",
}

// fragment writes the task group that a job's author starts from. Every value
// in it has passed a grammar without quotes, so nothing needs escaping.
func fragment(r gpu.Request, o framework.Options, g framework.Group, reservation string) string {
	meta := [][2]string{{admit.KeyGPU, r.String()}, {framework.MetaFramework, string(o.Kind)}}
	add := func(want bool, key, value string) {
		if want {
			meta = append(meta, [2]string{key, value})
		}
	}
	add(o.FractionMilli == 0, framework.MetaMemory, string(o.Memory))
	add(o.FractionMilli != 0, framework.MetaFraction, fmt.Sprint(float64(o.FractionMilli)/gpu.MilliPerGPU))
	add(o.MixedPrecision, framework.MetaPrecision, "true")
	add(o.Distributed, framework.MetaDistributed, "true")
	add(reservation != "", admit.KeyReservation, reservation)

	var b strings.Builder
	fmt.Fprintf(&b, "group %q {\n", g.Group)
	if o.Distributed {
		fmt.Fprintf(&b, "  count = %d\n\n  network {\n    mode = %q\n  }\n\n", g.Count, g.Network)
	}
	fmt.Fprintf(&b, "  task %q {\n    driver = \"containerd\"\n\n    meta {\n", g.Task)
	width := 0
	for _, pair := range meta {
		width = max(width, len(pair[0]))
	}
	for _, pair := range meta {
		fmt.Fprintf(&b, "      %-*s = %q\n", width, pair[0], pair[1])
	}
	fmt.Fprintf(&b, "    }\n\n    config {\n      image = %q\n    }\n  }\n}\n", images[o.Kind])
	return b.String()
}
