// SPDX-License-Identifier: MPL-2.0

package framework

import _ "embed"

const (
	pythonPath = "PYTHONPATH"
	helperDir  = "local/gpu"
)

// helperSource is the file that Python loads at its start.
//
//go:embed sitecustomize.py
var helperSource string

func addHelper(setup *Setup) {
	setup.Env[pythonPath] = "${NOMAD_TASK_DIR}/gpu"
	setup.Templates = append(setup.Templates, Template{
		EmbeddedTmpl: helperSource, DestPath: helperDir + "/sitecustomize.py", ChangeMode: "noop", Perms: "0644",
	})
}
