// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Kind is the way in which a request loads GPUs.
type Kind int

const (
	// KindCount asks for whole GPUs: "2(A100)".
	KindCount Kind = iota + 1
	// KindFraction asks for a share of one GPU, of compute and memory: "0.5".
	KindFraction
	// KindMemory asks for an amount of memory of one GPU: "8G" or "8G,0.5".
	KindMemory
)

// Request is what a user asks for, parsed.
//
//	request  = ( count | fraction | memory [ "," fraction ] ) [ "(" which ")" ]
//	count    = "1" … "9999"                       whole GPUs, exclusive
//	fraction = "0.001" … "0.999"                  at most three decimals; behind a
//	                                              memory also thousandths, "2" … "999"
//	memory   = number ( "G" | "GiB" | "M" | "MiB" )
//	which    = vendor | [ vendor "," ] models
//	vendor   = "nvidia" | "amd" | "intel" | "huawei"
//	models   = ( model { "|" model } | excluded ) { "," excluded }
//	excluded = "!" model
//	model    = letter or digit, then letters, digits, "-", "_" or "."
//
// "H100|A100" is an H100 or, where none has room, an A100; "!T4,!V100" is any model but
// these two.
//
// There is no white space and no other spelling. Requests are comparable with
// ==, and Parse(r.String()) == r.
type Request struct {
	Kind Kind
	// Count is the number of whole GPUs; 0 unless Kind is KindCount.
	Count int
	// MemoryMiB is the memory; 0 unless Kind is KindMemory.
	MemoryMiB int64
	// Milli is the compute share. For KindMemory 0 means in proportion to the
	// memory.
	Milli int64
	// Vendor and Model are empty when any will do. Vendor alone means any of the
	// vendor's models. Model is one model, or several in order of preference, joined
	// as they are written; [Request.Models] takes them apart.
	Vendor, Model string
	// Not are the models that will not do, joined by ","; see [Request.Excluded].
	Not string `json:",omitempty"`
}

// Models are the models that will do, in order of preference; none when any will.
func (r Request) Models() []string { return splitList(r.Model, "|") }

// Excluded are the models that will not do.
func (r Request) Excluded() []string { return splitList(r.Not, ",") }

func splitList(text, separator string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, separator)
}

// RequestError says where a request is malformed and what would be valid.
type RequestError struct {
	// Input is the whole request.
	Input string
	// Column is where the problem starts, in bytes from 1.
	Column int
	// Problem is the mistake there; Valid is the text to write instead.
	Problem, Valid string
}

// Error names the request, the column, the problem and the remedy.
func (e *RequestError) Error() string {
	return fmt.Sprintf("gpu request %q, column %d: %s; %s", e.Input, e.Column, e.Problem, e.Valid)
}

const (
	maxCount     = 9999
	requestHelp  = `write whole GPUs ("2"), a fraction ("0.5"), memory ("8G") or both ("8G,0.5"), each with optional brackets: a vendor, models, or both`
	fractionHelp = `write a fraction from 0.001 to 0.999, or "1" for one whole GPU`
)

var vendors = []string{"nvidia", "amd", "intel", "huawei"}

// Vendors are the words for vendors in requests and device groups.
func Vendors() []string { return slices.Clone(vendors) }

// ParseRequest reads a request. Every error is a *RequestError.
func ParseRequest(s string) (Request, error) {
	p := &requestParser{input: s}
	r, ok := p.amount()
	if ok && p.at < len(s) {
		ok = p.brackets(&r)
	}
	if !ok {
		return Request{}, p.failure
	}
	return r, nil
}

// String writes the request in its canonical form, which ParseRequest reads.
func (r Request) String() string {
	var b strings.Builder
	switch r.Kind {
	case KindCount:
		b.WriteString(strconv.Itoa(r.Count))
	case KindFraction:
		b.WriteString(FormatFraction(r.Milli))
	case KindMemory:
		b.WriteString(FormatMemory(r.MemoryMiB))
		if r.Milli != 0 {
			b.WriteString("," + FormatFraction(r.Milli))
		}
	}
	var which []string
	for _, term := range []string{r.Vendor, r.Model} {
		if term != "" {
			which = append(which, term)
		}
	}
	for _, model := range r.Excluded() {
		which = append(which, "!"+model)
	}
	if len(which) > 0 {
		b.WriteString("(" + strings.Join(which, ",") + ")")
	}
	return b.String()
}

// FormatFraction writes milli from 1 to 999 as a request does: 250 is "0.25".
func FormatFraction(milli int64) string {
	return "0." + strings.TrimRight(fmt.Sprintf("%03d", milli), "0")
}

// requestParser walks over the input from left to right. Its methods return
// false after the first failure.
type requestParser struct {
	input   string
	at      int
	failure *RequestError
}

func (p *requestParser) fail(at int, valid, format string, args ...any) bool {
	p.failure = &RequestError{Input: p.input, Column: at + 1, Problem: fmt.Sprintf(format, args...), Valid: valid}
	return false
}

func (p *requestParser) rest() string { return p.input[p.at:] }

// word takes everything up to the next bracket or comma.
func (p *requestParser) word() string {
	rest := p.rest()
	if end := strings.IndexAny(rest, ",()"); end >= 0 {
		rest = rest[:end]
	}
	p.at += len(rest)
	return rest
}

func (p *requestParser) amount() (Request, bool) {
	start := p.at
	word := p.word()
	digits := countDigits(word)
	switch {
	case digits == 0:
		return Request{}, p.fail(start, requestHelp, "%s", noNumber(word))
	case digits == len(word):
		return p.count(start, word)
	case word[digits] == '.':
		milli, ok := p.fraction(start, word)
		return Request{Kind: KindFraction, Milli: milli}, ok
	}
	mib, problem := amountOf(word[:digits], word[digits:], mibPerUnit)
	if problem != "" {
		return Request{}, p.fail(start+memoryFault(word, digits), memoryHelp, "%s", problem)
	}
	r := Request{Kind: KindMemory, MemoryMiB: mib}
	if strings.HasPrefix(p.rest(), ",") {
		p.at++
		at := p.at
		word := p.word()
		if milli, err := ParseMilli(word); err == nil && countDigits(word) == len(word) && milli < MilliPerGPU {
			r.Milli = milli
			return r, true
		}
		milli, ok := p.fraction(at, word)
		if !ok {
			return Request{}, false
		}
		r.Milli = milli
	}
	return r, true
}

// memoryFault points at the unit if that is wrong, else at the number.
func memoryFault(word string, digits int) int {
	if _, ok := mibPerUnit[word[digits:]]; ok {
		return 0
	}
	return digits
}

func noNumber(word string) string {
	switch {
	case word == "":
		return "an amount is missing"
	case word[0] == ' ' || word[0] == '\t':
		return "white space is not allowed"
	case word[0] == '.':
		return `the zero before "." is missing`
	default:
		return fmt.Sprintf("%q is not an amount", word)
	}
}

func (p *requestParser) count(at int, word string) (Request, bool) {
	n, err := strconv.Atoi(word)
	switch {
	case err != nil || n > maxCount:
		return Request{}, p.fail(at, fmt.Sprintf("write a count from 1 to %d", maxCount), "count %s is too large", word)
	case n == 0:
		return Request{}, p.fail(at, "write a count from 1, or leave the request out for a task without a GPU", "count is zero")
	case word[0] == '0':
		return Request{}, p.fail(at, fmt.Sprintf("write %q", strconv.Itoa(n)), "count %q has a leading zero", word)
	}
	return Request{Kind: KindCount, Count: n}, true
}

// fraction reads "0.5" out of the word that starts at column at.
func (p *requestParser) fraction(at int, word string) (int64, bool) {
	whole, decimals, found := strings.Cut(word, ".")
	digits := countDigits(decimals)
	switch {
	case word == "":
		return 0, p.fail(at, fractionHelp, "a fraction is missing")
	case !found || whole == "" || countDigits(whole) != len(whole):
		return 0, p.fail(at, fractionHelp, "%q is not a fraction", word)
	case digits != len(decimals):
		return 0, p.fail(at+len(whole)+1+digits, fractionHelp, "%q is not a fraction: unexpected %q", word, decimals[digits:])
	case whole != "0":
		return 0, p.fail(at, aboveOneHelp(whole, decimals), "fraction %q is not below 1", word)
	case digits == 0 || digits > 3:
		return 0, p.fail(at+len(whole)+1, fractionHelp, "fraction %q has %d decimals, from 1 to 3 are valid", word, digits)
	}
	milli, _ := strconv.ParseInt((decimals + "00")[:3], 10, 64)
	if milli == 0 {
		return 0, p.fail(at, fractionHelp, "fraction %q is zero", word)
	}
	return milli, true
}

// aboveOneHelp says what a fraction of one or more was probably meant to be.
func aboveOneHelp(whole, decimals string) string {
	if strings.Trim(decimals, "0") == "" && whole[0] != '0' {
		return fmt.Sprintf("write %q for whole GPUs", whole)
	}
	return "a fraction is a share of one GPU; " + fractionHelp
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
