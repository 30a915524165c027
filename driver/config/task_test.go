// SPDX-License-Identifier: MPL-2.0

package config

import (
	"testing"

	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/hclform"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// Nomad makes of the driver's schema what a job is checked by without Nomad.
func TestSchemaForNomadIsThatOfChecks(t *testing.T) {
	nomads, diags := hclspecutils.Convert(TaskSchema)
	must.False(t, diags.HasErrors(), must.Sprint(diags))
	must.Eq(t, nomads, hclform.Spec(taskconfig.Schema()))
}
