package rego

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/print"
)

const (
	// packageName is the package that a policy is.
	packageName = "agent_policy"
	// stateName is below data, and has what a policy remembers.
	stateName = "pstate"
	// lenientRule allows everything, for those who write a policy.
	lenientRule = "AllowRequestsFailingPolicy"
)

const (
	maxState  = 1 << 20 // how long what a policy remembers may be as JSON
	maxPrint  = 4 << 10 // how much of what a policy prints is told: the last of it
	maxNested = 1000    // how deep expressions may be nested
	maxRules  = 200     // how many different rules are asked for
)

// Evaluator is one policy and what it remembers.
type Evaluator struct {
	compiler *ast.Compiler
	store    storage.Store
	state    ast.Value // data, as the store has it
	queries  map[string]ast.Body
	most     time.Duration
	lenient  bool
}

// Decision is what a policy says about a request.
type Decision struct {
	Allowed bool
	Reason  string // why not
	// State is what the policy remembers from now on; nil when that did not change.
	State json.RawMessage
}

// New compiles a policy, of which an evaluation may take as long as most.
func New(ctx context.Context, text string, most time.Duration) (_ *Evaluator, err error) {
	defer asError(&err)
	module, err := parse(text)
	if err != nil {
		return nil, err
	}
	if got := module.Package.Path.String(); got != "data."+packageName {
		return nil, fmt.Errorf("the policy is of the package %s; %s is wanted", strings.TrimPrefix(got, "data."), packageName)
	}
	e := &Evaluator{compiler: ast.NewCompiler().WithCapabilities(capabilities()).WithEnablePrintStatements(true), queries: map[string]ast.Body{}, most: most}
	e.compiler.Compile(map[string]*ast.Module{packageName: module})
	if e.compiler.Failed() {
		return nil, e.compiler.Errors
	}
	if err := e.SetState([]byte(`{"` + stateName + `":{}}`)); err != nil {
		return nil, err
	}
	got, _, err := e.eval(ctx, lenientRule, ast.NewObject())
	e.lenient = err == nil && got != nil && got.Compare(ast.Boolean(true)) == 0
	return e, nil
}

// parse parses a policy: as Kata's agent does, in the language's first version, and if that
// fails in its second, which newer tools write.
func parse(text string) (*ast.Module, error) {
	first, err := parseAs(text, ast.RegoV0)
	if err == nil {
		return first, nil
	}
	second, err2 := parseAs(text, ast.RegoV1)
	if err2 == nil {
		return second, nil
	}
	// The one that came farther is the language that was meant.
	if rowOf(err2) > rowOf(err) {
		return nil, err2
	}
	return nil, err
}

func parseAs(text string, version ast.RegoVersion) (*ast.Module, error) {
	// This fails before the module is parsed by recursion without a bound.
	if _, _, errs := ast.NewParser().WithFilename("policy").WithReader(strings.NewReader(text)).WithRegoVersion(version).WithMaxRecursionDepth(maxNested).Parse(); len(errs) > 0 {
		return nil, errs
	}
	return ast.ParseModuleWithOpts("policy", text, ast.ParserOptions{RegoVersion: version})
}

func rowOf(err error) int {
	var errs ast.Errors
	if errors.As(err, &errs) && len(errs) > 0 && errs[0].Location != nil {
		return errs[0].Location.Row
	}
	return 0
}

// capabilities are what a policy may use: nothing that reaches out of its process.
func capabilities() *ast.Capabilities {
	c := ast.CapabilitiesForThisVersion()
	c.AllowNet = []string{}
	c.Builtins = slices.DeleteFunc(c.Builtins, func(b *ast.Builtin) bool {
		return slices.Contains([]string{"http.send", "net.lookup_ip_addr", "opa.runtime"}, b.Name)
	})
	return c
}

// Ask decides about a request. input is the request as JSON. Whatever goes wrong is a denial.
func (e *Evaluator) Ask(ctx context.Context, request string, input []byte) Decision {
	d, err := e.ask(ctx, request, input)
	if err != nil {
		return Decision{Reason: err.Error()}
	}
	return d
}

func (e *Evaluator) ask(ctx context.Context, request string, input []byte) (d Decision, err error) {
	defer asError(&err)
	in, err := ast.ValueFromReader(bytes.NewReader(input))
	if err != nil {
		return d, fmt.Errorf("the request as JSON: %w", err)
	}
	got, prints, err := e.eval(ctx, request, in)
	if err != nil {
		return d, err
	}
	var ops *ast.Term
	switch v := got.(type) {
	case nil:
		prints = strings.TrimSpace("the policy has no rule for it, or one that is undefined. " + prints)
	case ast.Boolean:
		d.Allowed = bool(v)
	case ast.Object:
		allowed := v.Get(ast.StringTerm("allowed"))
		if allowed == nil {
			return d, errors.New("the rule's value has no \"allowed\"")
		}
		is, ok := allowed.Value.(ast.Boolean)
		if !ok {
			return d, fmt.Errorf("the rule's \"allowed\" is %.100s; true or false is wanted", allowed)
		}
		d.Allowed, ops = bool(is), v.Get(ast.StringTerm("ops"))
	default:
		return d, fmt.Errorf("the rule's value is %.100s; true, false or an object with \"allowed\" is wanted", got)
	}
	if d.Allowed && ops != nil && ops.Value.Compare(ast.Null{}) != 0 {
		if d.State, err = e.patch(ctx, ops); err != nil {
			return Decision{}, fmt.Errorf("the rule's \"ops\": %w", err)
		}
	}
	if e.lenient {
		d.Allowed = true
	}
	if !d.Allowed {
		d.Reason = prints
	}
	return d, nil
}

// eval returns a rule's value, nil when it is undefined, and the last of what was printed.
func (e *Evaluator) eval(ctx context.Context, rule string, input ast.Value) (value ast.Value, prints string, err error) {
	query, err := e.query(rule)
	if err != nil {
		return nil, "", err
	}
	cancel := topdown.NewCancel()
	deadline := time.AfterFunc(e.most, cancel.Cancel)
	defer deadline.Stop()
	var said printed
	err = storage.Txn(ctx, e.store, storage.TransactionParams{}, func(txn storage.Transaction) error {
		return topdown.NewQuery(query).WithCompiler(e.compiler).WithStore(e.store).WithTransaction(txn).WithInput(ast.NewTerm(input)).
			WithCancel(cancel).WithPrintHook(&said).
			Iter(ctx, func(r topdown.QueryResult) error {
				value = r[result].Value
				return nil
			})
	})
	if topdown.IsCancel(err) {
		err = fmt.Errorf("the evaluation took longer than %s", e.most)
	}
	if err != nil {
		return nil, "", err
	}
	return value, said.text(), nil
}

// result is the variable of a query that has the rule's value.
const result = ast.Var("value")

func (e *Evaluator) query(rule string) (ast.Body, error) {
	if q, ok := e.queries[rule]; ok {
		return q, nil
	}
	if len(e.queries) >= maxRules {
		return nil, errors.New("too many different requests")
	}
	ref := ast.Ref{ast.DefaultRootDocument, ast.StringTerm(packageName), ast.StringTerm(rule)}
	q, err := e.compiler.QueryCompiler().Compile(ast.NewBody(ast.Equality.Expr(ast.NewTerm(result), ast.NewTerm(ref))))
	if err != nil {
		return nil, err
	}
	e.queries[rule] = q
	return q, nil
}

// patch applies a JSON patch to what the policy remembers, wholly or not at all.
func (e *Evaluator) patch(ctx context.Context, ops *ast.Term) (json.RawMessage, error) {
	var next ast.Value
	apply := topdown.GetBuiltin(ast.JSONPatch.Name)
	err := apply(topdown.BuiltinContext{Context: ctx}, []*ast.Term{ast.NewTerm(e.state), ops}, func(t *ast.Term) error {
		next = t.Value
		return nil
	})
	if err != nil {
		return nil, err
	}
	if next == nil || next.Compare(e.state) == 0 {
		return nil, nil
	}
	plain, err := ast.JSON(next)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(plain)
	if err != nil {
		return nil, err
	}
	return text, e.SetState(text)
}

// SetState sets what the policy remembers: the whole document data as JSON.
func (e *Evaluator) SetState(text []byte) (err error) {
	defer asError(&err)
	if len(text) > maxState {
		return fmt.Errorf("the policy's state has %d bytes as JSON; %d is the most", len(text), maxState)
	}
	v, err := ast.ValueFromReader(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("the policy's state: %w", err)
	}
	doc, ok := v.(ast.Object)
	if !ok || doc.Get(ast.StringTerm(packageName)) != nil {
		return fmt.Errorf("the policy's state must be an object without %q", packageName)
	}
	plain, err := ast.JSON(v)
	if err != nil {
		return err
	}
	e.store, e.state = inmem.NewFromObject(plain.(map[string]any)), v //nolint:forcetypeassert // an object is one
	return nil
}

// asError makes a panic of the library an error: a policy must not have a way to end the
// process, though that would deny what was asked.
func asError(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the evaluation failed: %v", p)
	}
}

// printed keeps the last of what a policy prints.
type printed struct{ b []byte }

// Print implements print.Hook.
func (p *printed) Print(_ print.Context, line string) error {
	if len(line) > maxPrint {
		line = line[len(line)-maxPrint:]
	}
	if len(p.b)+len(line)+1 > 2*maxPrint {
		p.b = append(p.b[:0], p.b[len(p.b)-min(len(p.b), maxPrint):]...)
	}
	p.b = append(append(p.b, line...), ' ')
	return nil
}

func (p *printed) text() string {
	b := p.b[len(p.b)-min(len(p.b), maxPrint):]
	return strings.TrimSpace(strings.ToValidUTF8(string(b), ""))
}
