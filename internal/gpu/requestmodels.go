// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"slices"
	"strings"
)

// maxModels bounds how many models a request names, and how many it excludes.
const maxModels = 16

const (
	modelHelp   = `write "(model)", "(vendor)" or "(vendor,model)", such as "(A100)", "(amd)" or "(nvidia,A100)"; several models in order of preference as "(H100|A100)", models that will not do as "(!T4,!V100)"`
	excludeHelp = `write what will do, such as "(H100|A100)" or "(amd)", or every model that will not, each with its own "!", such as "(!T4,!V100)"`
)

// brackets reads what stands behind the amount: which devices will do.
func (p *requestParser) brackets(r *Request) bool {
	if !strings.HasPrefix(p.rest(), "(") {
		return p.fail(p.at, requestHelp, "unexpected %q", p.rest())
	}
	p.at++
	first := p.at
	switch name := p.word(); {
	case strings.HasPrefix(name, "!"):
		p.at = first
		return p.excluded(r) && p.close()
	case slices.Contains(vendors, name):
		r.Vendor = name
		if !strings.HasPrefix(p.rest(), ",") {
			return p.close()
		}
		p.at++
	case strings.HasPrefix(p.rest(), ",") && !strings.HasPrefix(p.rest(), ",!"):
		return p.fail(first, "write one of "+strings.Join(vendors, ", "), "unknown vendor %q", name)
	default:
		p.at = first
	}
	return p.models(r) && p.close()
}

// models reads the models that will do, then those that will not.
func (p *requestParser) models(r *Request) bool {
	if strings.HasPrefix(p.rest(), "!") {
		return p.excluded(r)
	}
	first := p.at
	text := p.word()
	names := strings.Split(text, "|")
	for i, at := 0, first; i < len(names); i++ {
		if !p.model(at, names[i], names[:i]) {
			return false
		}
		at += len(names[i]) + 1
	}
	r.Model = text
	if !strings.HasPrefix(p.rest(), ",") {
		return true
	}
	p.at++
	return p.excluded(r)
}

// excluded reads "!T4,!V100".
func (p *requestParser) excluded(r *Request) bool {
	wanted := r.Models()
	var names []string
	for {
		at := p.at
		name, ok := strings.CutPrefix(p.word(), "!")
		switch {
		case !ok:
			return p.fail(at, excludeHelp, "behind a comma stands a model that will not do, with \"!\" before it")
		case !p.model(at+1, name, names):
			return false
		case slices.ContainsFunc(wanted, func(m string) bool { return strings.EqualFold(m, name) }):
			return p.fail(at, excludeHelp, "model %q is asked for and excluded", name)
		}
		names = append(names, name)
		if !strings.HasPrefix(p.rest(), ",") {
			r.Not = strings.Join(names, ",")
			return true
		}
		p.at++
	}
}

// model checks one model, which starts at a column, behind others of its list.
func (p *requestParser) model(at int, name string, before []string) bool {
	switch {
	case name == "":
		return p.fail(at, modelHelp, "a model is missing")
	case slices.Contains(vendors, name):
		return p.fail(at, excludeHelp, "%q is a vendor, which stands once and before the models", name)
	case len(before) == maxModels:
		return p.fail(at, modelHelp, "there are more than %d models", maxModels)
	case slices.ContainsFunc(before, func(m string) bool { return strings.EqualFold(m, name) }):
		return p.fail(at, modelHelp, "model %q stands twice", name)
	}
	for i := range len(name) {
		switch c := name[i]; {
		case c == '!' || c == '|':
			return p.fail(at+i, excludeHelp, "%q does not stand there", c)
		case !isAlphanumeric(c) && (i == 0 || !strings.ContainsRune("-_.", rune(c))):
			return p.fail(at+i, modelHelp, "model %q has %q in it, letters, digits, '-', '_' and '.' are valid", name, c)
		}
	}
	return true
}

func (p *requestParser) close() bool {
	if !strings.HasPrefix(p.rest(), ")") {
		return p.fail(p.at, modelHelp, "the closing bracket is missing")
	}
	p.at++
	if p.at < len(p.input) {
		return p.fail(p.at, requestHelp, "unexpected %q after the bracket", p.rest())
	}
	return true
}
