package admit

import (
	"fmt"
	"slices"
)

// Link is shown beside the job in Nomad's UI.
type Link struct {
	Label string
	URL   string
}

// addLink adds the link to the job's UI block, once.
func addLink(job *object, link Link) error {
	if link.URL == "" {
		return nil
	}
	ui, err := parseObject(job.get("UI"))
	if err != nil {
		return fmt.Errorf("UI: %w", err)
	}
	var links []Link
	if err := ui.decode("Links", &links); err != nil {
		return err
	}
	if slices.ContainsFunc(links, func(l Link) bool { return l.URL == link.URL }) {
		return nil
	}
	raws, err := parseArray(ui.get("Links"))
	if err != nil {
		return err
	}
	if ui.get("Description") == nil {
		ui.set("Description", encode(""))
	}
	ui.set("Links", rawArray(append(raws, encode(link))))
	job.set("UI", ui.raw())
	return nil
}
