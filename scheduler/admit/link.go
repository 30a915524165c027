// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"fmt"
)

// Link is shown beside the job in Nomad's UI.
type Link struct {
	Label string
	URL   string
}

// addLink adds the link to the job's UI block, in place of one of the same label.
func addLink(job *object, link Link) error {
	if link.URL == "" {
		return nil
	}
	ui, err := parseObject(job.get("UI"))
	if err != nil {
		return fmt.Errorf("UI: %w", err)
	}
	links, err := without(ui.get("Links"), func(raw json.RawMessage) bool {
		var have Link
		return json.Unmarshal(raw, &have) == nil && have.Label == link.Label
	})
	if err != nil {
		return fmt.Errorf("UI: %w", err)
	}
	if ui.get("Description") == nil {
		ui.set("Description", encode(""))
	}
	ui.set("Links", rawArray(append(links, encode(link))))
	job.set("UI", ui.raw())
	return nil
}
