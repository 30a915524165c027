// SPDX-License-Identifier: MPL-2.0

package service

import (
	"strings"

	"github.com/hashicorp/nomad/api"
)

const quick = `
preemption { min_run_time = "0s" }
`

func constraints(j *api.Job) string {
	var list []string
	for _, x := range j.TaskGroups[0].Constraints {
		list = append(list, x.LTarget+" "+x.Operand+" "+x.RTarget)
	}
	return strings.Join(list, "; ")
}
