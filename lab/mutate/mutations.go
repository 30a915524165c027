// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// edit replaces the bytes of a file from start up to end.
type edit struct {
	start, end int
	text       string
}

// mutation is one small mistake as a programmer makes.
type mutation struct {
	file string
	line int
	kind string // what sort of mistake it is
	what string // the code that changes, and what to
	// edits do not overlap and stand in the order of the file.
	edits []edit
	// runs is the line whose running shows that the mutation's does: its own, that of the
	// switch for what a case asks, which a profile has no line for, or that of the return.
	runs int
	// declared is whether it lies outside of functions, in declarations without lines that run.
	declared bool
}

// place names the mutation's line, the file relative to the folder we run in.
func (m mutation) place() string {
	name := m.file
	if here, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(here, m.file); err == nil {
			name = rel
		}
	}
	return fmt.Sprintf("%s:%d", name, m.line)
}

// apply returns the source with the mutation in it.
func (m mutation) apply(source []byte) []byte {
	var out bytes.Buffer
	at := 0
	for _, e := range m.edits {
		out.Write(source[at:e.start])
		out.WriteString(e.text)
		at = e.end
	}
	out.Write(source[at:])
	return out.Bytes()
}

// overlay writes the mutated file, and the list that tells the compiler to read it
// in place of the original, into a folder of their own.
func (m mutation) overlay() (string, error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return "", err
	}
	mutated, list := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(mutated, m.apply(source), 0o600); err != nil {
		return "", err
	}
	data, err := json.Marshal(map[string]map[string]string{"Replace": {m.file: mutated}})
	if err != nil {
		return "", err
	}
	return list, os.WriteFile(list, data, 0o600)
}

// find returns every mutation of the files, in the order of the code.
func find(files []string) ([]mutation, error) {
	var all []mutation
	for _, name := range files {
		source, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, name, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		f := finder{fset: fset, source: source, name: name}
		for _, declaration := range parsed.Decls {
			_, f.declared = declaration.(*ast.GenDecl)
			ast.Inspect(declaration, f.visit)
		}
		all = append(all, f.found...)
	}
	return all, nil
}

// finder collects the mutations of one file.
type finder struct {
	fset   *token.FileSet
	source []byte
	name   string
	// declared is whether the visited node lies outside of functions.
	declared bool
	// asked are what cases ask, those of an outer switch before those of an inner one.
	asked []question
	found []mutation
}

// question is what one case asks, and the line of its switch.
type question struct {
	from, to token.Pos
	line     int
}

func (f *finder) offset(pos token.Pos) int { return f.fset.Position(pos).Offset }

func (f *finder) text(n ast.Node) string {
	return string(f.source[f.offset(n.Pos()):f.offset(n.End())])
}

// add notes a mutation that replaces one node.
func (f *finder) add(kind string, n ast.Node, with string) {
	what := f.text(n)
	if with != "" {
		what += " → " + with
	}
	f.note(kind, n, what, edit{f.offset(n.Pos()), f.offset(n.End()), with})
}

func (f *finder) note(kind string, n ast.Node, what string, edits ...edit) {
	what, _, cut := strings.Cut(what, "\n")
	if cut {
		what += " …"
	}
	line := f.fset.Position(n.Pos()).Line
	runs := line
	for _, q := range f.asked {
		if q.from <= n.Pos() && n.Pos() < q.to {
			runs = q.line
		}
	}
	f.found = append(f.found, mutation{file: f.name, line: line, kind: kind, what: what, edits: edits, runs: runs, declared: f.declared})
}

// cases notes what the cases of a switch ask.
func (f *finder) cases(n *ast.SwitchStmt) {
	for _, clause := range n.Body.List {
		if list := clause.(*ast.CaseClause).List; len(list) > 0 {
			f.asked = append(f.asked, question{list[0].Pos(), list[len(list)-1].End(), f.fset.Position(n.Pos()).Line})
		}
	}
}

// boundaries are the comparisons that differ in the equal case alone.
var boundaries = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if n.Body != nil {
			f.function(n.Type, n.Body)
		}
	case *ast.FuncLit:
		f.function(n.Type, n.Body)
	case *ast.IfStmt:
		f.add("negated condition", n.Cond, "!("+f.text(n.Cond)+")")
	case *ast.ForStmt:
		if n.Cond != nil {
			f.add("negated condition", n.Cond, "!("+f.text(n.Cond)+")")
		}
	case *ast.RangeStmt:
		f.skipFirst(n)
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.BlockStmt:
		f.statements(n.List)
	case *ast.SwitchStmt:
		f.cases(n)
	case *ast.CaseClause:
		f.statements(n.Body)
	case *ast.CommClause:
		f.statements(n.Body)
	}
	return true
}

func (f *finder) binary(n *ast.BinaryExpr) {
	operator := func(kind, with string) {
		at := f.offset(n.OpPos)
		f.note(kind, n, f.text(n)+" with "+with, edit{at, at + len(n.Op.String()), with})
	}
	if with, ok := boundaries[n.Op]; ok {
		operator("boundary", with)
	}
	switch n.Op {
	case token.LAND:
		operator("logic", "||")
	case token.LOR:
		operator("logic", "&&")
	}
	for _, operand := range []ast.Expr{n.X, n.Y} {
		literal, ok := operand.(*ast.BasicLit)
		if !ok || literal.Kind != token.INT {
			continue
		}
		if value, err := strconv.ParseInt(literal.Value, 0, 64); err == nil {
			f.add("off by one", literal, strconv.FormatInt(value+1, 10))
		}
	}
}

// statements drops those that only have an effect, one at a time.
func (f *finder) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if name := calledMethod(s.X); name != "Lock" && name != "RLock" && name != "Unlock" && name != "RUnlock" {
				f.add("dropped statement", s, "")
			}
		case *ast.IncDecStmt:
			f.add("dropped statement", s, "")
		case *ast.AssignStmt:
			if s.Tok != token.DEFINE {
				f.add("dropped statement", s, "")
			}
		case *ast.DeferStmt:
			if name := calledMethod(s.Call); name != "Unlock" && name != "RUnlock" {
				f.add("dropped statement", s, "")
			}
		}
	}
}

// skipFirst lets a loop pass over its first iteration.
func (f *finder) skipFirst(n *ast.RangeStmt) {
	start, body := f.offset(n.Pos()), f.offset(n.Body.Lbrace)+1
	f.note("skipped first iteration", n, f.text(n),
		edit{start, start, "mutateFirst := true\n"},
		edit{body, body, "\nif mutateFirst { mutateFirst = false; continue }\n"})
}

// function finds what concerns a function as a whole: its errors and its locks.
// Functions inside it are visited on their own.
func (f *finder) function(signature *ast.FuncType, body *ast.BlockStmt) {
	returnsError := false
	if results := signature.Results; results != nil && len(results.List) > 0 {
		last, ok := results.List[len(results.List)-1].Type.(*ast.Ident)
		returnsError = ok && last.Name == "error"
	}
	type lock struct {
		first ast.Node
		edits []edit
	}
	locks := map[string]*lock{}
	var order []string
	note := func(call ast.Expr, whole ast.Node) {
		name := calledMethod(call)
		read := strings.HasPrefix(name, "R")
		if name = strings.TrimPrefix(name, "R"); name != "Lock" && name != "Unlock" {
			return
		}
		key := fmt.Sprint(read, f.text(call.(*ast.CallExpr).Fun.(*ast.SelectorExpr).X))
		if locks[key] == nil {
			locks[key] = &lock{first: whole}
			order = append(order, key)
		}
		locks[key].edits = append(locks[key].edits, edit{f.offset(whole.Pos()), f.offset(whole.End()), ""})
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			if !returnsError || len(n.Results) == 0 {
				return true
			}
			last := n.Results[len(n.Results)-1]
			_, isCall := last.(*ast.CallExpr)
			if ident, ok := last.(*ast.Ident); ok && ident.Name == "nil" || isCall && len(n.Results) != signature.Results.NumFields() {
				return true
			}
			f.add("error to nil", last, "nil")
			// A profile leaves out what stands behind a function literal.
			f.found[len(f.found)-1].runs = f.fset.Position(n.Pos()).Line
		case *ast.ExprStmt:
			note(n.X, n)
		case *ast.DeferStmt:
			note(n.Call, n)
		}
		return true
	})
	for _, key := range order {
		if l := locks[key]; len(l.edits) > 1 {
			f.note("removed lock", l.first, f.text(l.first), l.edits...)
		}
	}
}

// calledMethod is the name of the method that an expression calls, or "".
func calledMethod(x ast.Expr) string {
	if call, ok := x.(*ast.CallExpr); ok {
		if s, ok := call.Fun.(*ast.SelectorExpr); ok {
			return s.Sel.Name
		}
	}
	return ""
}
