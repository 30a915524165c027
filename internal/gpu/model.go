package gpu

import (
	"slices"
	"strings"
)

// brandWords are the parts of a full name that say nothing about which GPU it is.
var brandWords = []string{"NVIDIA", "Tesla", "GeForce", "Quadro", "GRID", "AMD", "Instinct", "Radeon", "Intel",
	"Data", "Center", "GPU", "Arc", "Pro", "Huawei", "Ascend"}

// seriesWords are no name by themselves: the number that follows belongs to them.
var seriesWords = []string{"RTX", "GTX", "TITAN", "PRO", "Flex", "Max"}

// suffixWords make another GPU of the same number.
var suffixWords = []string{"Ti", "SUPER", "Ada", "D"}

// ShortModel is a model as people say it: "NVIDIA H100 80GB HBM3" is "H100",
// "Tesla V100-SXM2-32GB" is "V100", "NVIDIA GeForce RTX 3090" is "RTX3090",
// "NVIDIA RTX A6000" is "A6000". It serves as the name of device groups and as
// the attribute "type", and requests such as "2(A100)" name it.
func ShortModel(model string) string {
	words := strings.FieldsFunc(model, func(r rune) bool { return r == ' ' || r == '-' || r == '_' || r == '/' })
	for len(words) > 1 && slices.Contains(brandWords, words[0]) {
		words = words[1:]
	}
	if len(words) == 0 {
		return "unknown"
	}
	name := ""
	for len(words) > 1 && slices.Contains(seriesWords, words[0]) {
		name += words[0]
		words = words[1:]
	}
	if name == "" {
		return words[0]
	}
	if words[0][0] == 'A' { // "RTX A6000" is said without its series
		name = ""
	}
	name += words[0]
	for _, word := range words[1:] {
		if !slices.Contains(suffixWords, word) {
			break
		}
		name += word
	}
	return name
}
