// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"regexp"
	"slices"
	"strings"
)

// brandWords are the parts of a full name that say nothing about which GPU it is.
var brandWords = []string{"NVIDIA", "Tesla", "GeForce", "Quadro", "GRID", "AMD", "ATI", "Instinct", "Radeon", "FirePro", "AI", "Intel",
	"Data", "Center", "GPU", "Arc", "Pro", "Huawei", "Ascend"}

// seriesWords are no name by themselves: the number that follows belongs to them.
var seriesWords = []string{"RTX", "GTX", "GTS", "GT", "RX", "R5", "R7", "R9", "HD", "UHD", "Iris", "Xe", "Vega", "TITAN", "CMP", "PRO", "Flex", "Max"}

// suffixWords make another GPU of the same number, and are part of its name; fillerWords
// stand between them and say nothing.
var (
	suffixWords = []string{"Ti", "SUPER", "Ada", "D", "v2", "XT", "XTX", "GRE", "SFF", "Black", "Fury", "Nano", "Laptop", "MaxQ", "Mobile", "CEO"}
	fillerWords = []string{"Generation", "Blackwell", "with", "GPU", "Graphics", "Dual", "Slot"}
)

// namelessWords are what names without a number of the card are made of, which are written
// out: "AMD Radeon Graphics" is no "NVIDIA Graphics Device".
var namelessWords = []string{"Graphics", "Device", "Series", "Processor"}

var (
	// virtual are names of NVIDIA's vGPUs, which end with how many GB of the card they have:
	// "GRID RTX6000-24Q", "NVIDIA RTX6000-Ada-48Q", "GRID A100D-3-20C".
	virtual = regexp.MustCompile(`^(?:NVIDIA |GRID |Quadro |Tesla )*([A-Za-z0-9]+)(-Ada)?((?:-[0-9])?-[0-9]+[ABCQ](?:ME)?)$`)
	// mining cards of one number have different memory behind their hyphen.
	mining = regexp.MustCompile(`P10[0-9]-[0-9]{3}`)
	// size is how much memory a card has, where its name says so.
	size = regexp.MustCompile(`^[0-9]+GB?$`)
	// maxQ are mobile cards with less power, whose name has a hyphen in it. Of "RTX PRO
	// 6000 Blackwell Max-Q Workstation Edition" it is no more than that.
	maxQ = regexp.MustCompile(`Max-Q( Workstation Edition)?`)
)

// ShortModel is a model as people say it: "NVIDIA H100 80GB HBM3" is "H100",
// "Tesla V100-SXM2-32GB" is "V100", "NVIDIA GeForce RTX 3090" is "RTX3090",
// "NVIDIA RTX A6000" is "A6000". It serves as the name of device groups and as
// the attribute "type", and requests such as "2(A100)" name it.
//
// Workstation and consumer cards with different memory have different names; one that has
// several sizes has the size behind it: "GTX1060-6GB". Cards of data centers are said
// without it. A vGPU is named after its profile: "A10-24Q".
func ShortModel(model string) string {
	model = strings.NewReplacer("(TM)", "", "(R)", "", "(", "", ")", "").Replace(model)
	if match := virtual.FindStringSubmatch(model); match != nil {
		return match[1] + strings.TrimPrefix(match[2], "-") + match[3]
	}
	if match := mining.FindString(model); match != "" {
		return match
	}
	model = maxQ.ReplaceAllStringFunc(model, func(s string) string {
		if s == "Max-Q" {
			return "MaxQ"
		}
		return ""
	})
	words := strings.FieldsFunc(model, func(r rune) bool { return r == ' ' || r == '-' || r == '_' || r == '/' })
	if len(words) == 0 {
		return "unknown"
	}
	all := words
	for len(words) > 1 && slices.Contains(brandWords, words[0]) {
		words = words[1:]
	}
	if words[0] == "PRO" && slices.Contains(all, "Radeon") && len(words) > 1 {
		words = words[1:] // "Radeon PRO W7900" is said as the older "Radeon Pro W6800"
	}
	if slices.Contains(namelessWords, words[0]) {
		return nameless(all, words)
	}
	name := ""
	for len(words) > 1 && slices.Contains(seriesWords, words[0]) {
		name += words[0]
		if words = words[1:]; words[0] == "Graphics" && len(words) > 1 { // "UHD Graphics 770"
			words = words[1:]
		}
	}
	if name == "RTX" && words[0][0] == 'A' { // "RTX A6000" is said without its series
		name = ""
	} else if name == "" && dataCenter(all, words[0]) {
		return words[0]
	}
	return name + words[0] + suffixes(words[1:])
}

// suffixes are the words behind a number that make another GPU of it.
func suffixes(words []string) string {
	name, memory := "", ""
	for _, word := range words {
		switch {
		case slices.Contains(suffixWords, word):
			name += word
		case size.MatchString(word):
			memory = "-" + word
		case !slices.Contains(fillerWords, word):
			return name + memory
		}
	}
	return name + memory
}

// nameless names a GPU whose name has no number, or has it at the end: "Intel Arc Graphics
// 140V".
func nameless(all, words []string) string {
	if last := words[len(words)-1]; strings.ContainsAny(last, "0123456789") {
		return last
	}
	name := ""
	for _, word := range all {
		if word != "NVIDIA" && word != "AMD" && word != "Intel" {
			name += word
		}
	}
	return name
}

// dataCenter reports whether a name that has no series is that of a card for data centers:
// a letter or two, and at most three digits.
func dataCenter(all []string, name string) bool {
	if slices.ContainsFunc(all, func(w string) bool { return w == "GeForce" || w == "Quadro" }) {
		return false
	}
	if slices.ContainsFunc(all, func(w string) bool { return w == "Tesla" || w == "Instinct" }) {
		return true
	}
	return dataCenterName.MatchString(name) && name != "T400" && name != "T600"
}

var dataCenterName = regexp.MustCompile(`^(?:[ABHLMPTV]|G[BH])[0-9]{1,3}[A-Za-z]*$`)
