package gpu

import (
	"fmt"
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
//	request  = ( count | fraction | memory [ "," fraction ] ) [ "(" [ vendor "," ] model ")" ]
//	count    = "1" … "9999"                       whole GPUs, exclusive
//	fraction = "0.001" … "0.999"                  at most three decimals
//	memory   = number ( "G" | "GiB" | "M" | "MiB" )
//	vendor   = "nvidia" | "amd" | "intel" | "huawei"
//	model    = letter or digit, then letters, digits, "-", "_" or "."
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
	// Vendor and Model are empty when any will do. Vendor is set only with a
	// Model.
	Vendor, Model string
}

// RequestError says where a request is malformed and what would be valid.
type RequestError struct {
	// Input is the whole request.
	Input string
	// Column is where the problem starts, in bytes from 1.
	Column int
	// Problem is what is wrong there; Valid is what to write.
	Problem, Valid string
}

// Error names the request, the column, the problem and the remedy.
func (e *RequestError) Error() string {
	return fmt.Sprintf("gpu request %q, column %d: %s; %s", e.Input, e.Column, e.Problem, e.Valid)
}

const (
	maxCount     = 9999
	requestHelp  = `write whole GPUs ("2"), a fraction ("0.5"), memory ("8G") or both ("8G,0.5"), each with an optional "(model)" or "(vendor,model)"`
	fractionHelp = `write a fraction from 0.001 to 0.999, or "1" for one whole GPU`
	modelHelp    = `write "(model)" or "(vendor,model)", such as "(A100)" or "(nvidia,A100)"`
)

var vendors = []string{"nvidia", "amd", "intel", "huawei"}

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
	switch {
	case r.Vendor != "":
		b.WriteString("(" + r.Vendor + "," + r.Model + ")")
	case r.Model != "":
		b.WriteString("(" + r.Model + ")")
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
	mib, problem := memoryOf(word[:digits], word[digits:])
	if problem != "" {
		return Request{}, p.fail(start+memoryFault(word, digits), memoryHelp, "%s", problem)
	}
	r := Request{Kind: KindMemory, MemoryMiB: mib}
	if strings.HasPrefix(p.rest(), ",") {
		p.at++
		at := p.at
		milli, ok := p.fraction(at, p.word())
		if !ok {
			return Request{}, false
		}
		r.Milli = milli
	}
	return r, true
}

// memoryFault points at the unit if that is what is wrong, else at the number.
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

func (p *requestParser) brackets(r *Request) bool {
	if !strings.HasPrefix(p.rest(), "(") {
		return p.fail(p.at, requestHelp, "unexpected %q", p.rest())
	}
	p.at++
	first := p.at
	name := p.word()
	if strings.HasPrefix(p.rest(), ",") {
		if !p.vendor(first, name) {
			return false
		}
		r.Vendor = name
		p.at++
		first = p.at
		name = p.word()
	}
	if !p.model(first, name, r.Vendor != "") {
		return false
	}
	r.Model = name
	return p.close()
}

func (p *requestParser) vendor(at int, name string) bool {
	for _, v := range vendors {
		if name == v {
			return true
		}
	}
	return p.fail(at, "write one of "+strings.Join(vendors, ", "), "unknown vendor %q", name)
}

func (p *requestParser) model(at int, name string, afterVendor bool) bool {
	if name == "" {
		return p.fail(at, modelHelp, "a model is missing")
	}
	for i := range len(name) {
		if c := name[i]; !isAlphanumeric(c) && (i == 0 || !strings.ContainsRune("-_.", rune(c))) {
			return p.fail(at+i, modelHelp, "model %q has %q in it, letters, digits, '-', '_' and '.' are valid", name, c)
		}
	}
	for _, v := range vendors {
		if name == v && !afterVendor {
			return p.fail(at, fmt.Sprintf(`write "(%s,MODEL)"`, v), "%q is a vendor, not a model", name)
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

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
