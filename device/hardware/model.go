package hardware

import "strings"

// brandWords are the parts of a full name that say nothing about which GPU it is.
var brandWords = map[string]bool{"NVIDIA": true, "Tesla": true, "GeForce": true, "Quadro": true, "GRID": true}

// seriesWords are no name by themselves: the number that follows belongs to them.
var seriesWords = map[string]bool{"RTX": true, "GTX": true, "TITAN": true}

// suffixWords make another GPU of the same number.
var suffixWords = map[string]bool{"Ti": true, "SUPER": true, "Ada": true, "D": true}

// ShortName is a model as people say it: "NVIDIA H100 80GB HBM3" is "H100",
// "Tesla V100-SXM2-32GB" is "V100", "NVIDIA GeForce RTX 3090" is "RTX3090",
// "NVIDIA RTX A6000" is "A6000". It serves as the name of device groups and as
// the attribute "type".
func ShortName(model string) string {
	words := strings.Fields(model)
	for len(words) > 1 && brandWords[words[0]] {
		words = words[1:]
	}
	if len(words) == 0 {
		return "unknown"
	}
	name, _, _ := strings.Cut(words[0], "-")
	if !seriesWords[name] || len(words) == 1 {
		return name
	}
	next := words[1]
	if next[0] != 'A' {
		next = name + next
	}
	for _, word := range words[2:] {
		if !suffixWords[word] {
			break
		}
		next += word
	}
	return next
}
