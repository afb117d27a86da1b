package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/grant/document"
)

// NewGrants returns the command grants.
func NewGrants(a *base.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "grants",
		Short: "Programs with explicit grants",
		Args:  cobra.ArbitraryArgs,
		RunE:  base.NeedsCommand,
	}
	cmd.AddCommand(newGrantsCheck(a))
	return cmd
}

// grantsCheck are the flags of `grants check`.
type grantsCheck struct {
	policy, wish         string
	subject              document.Subject
	mounts, secrets, env []string
	wasm, asJSON         bool
}

// grantsAnswer is the output of `grants check --json`.
type grantsAnswer struct {
	Descriptors []grant.Descriptor `json:"descriptors"`
	Denied      []grant.Denied     `json:"denied"`
	Environment []string           `json:"environment"`
	Argument    string             `json:"argument"`
}

func newGrantsCheck(a *base.App) *cobra.Command {
	var c grantsCheck
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Show the grants of a document",
		Long: "Show the grants that a program with this document would get, and those that a policy denies, without an agent.\n" +
			"Without --mount, --secret and --env, the request is assumed to have everything that the document names.",
		Args: base.ExactArgs(1, "a document; - is the standard input"),
		RunE: func(_ *cobra.Command, args []string) error {
			answer, err := c.answer(a.Stdin, args[0])
			if err != nil {
				return err
			}
			if c.asJSON {
				return present.WriteJSON(a.Stdout, answer, true)
			}
			return c.print(a, answer)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.policy, "policy", "", "the operator's policy file")
	f.StringVar(&c.wish, "image-document", "", "the image's document, which limits the grants")
	f.StringVar(&c.subject.Owner, "owner", "", "for the policy: the face, such as cri")
	f.StringVar(&c.subject.Namespace, "namespace", "", "for the policy: the namespace")
	f.StringVar(&c.subject.Image, "image", "", "for the policy: the image's reference")
	f.StringArrayVar(&c.mounts, "mount", nil, "a mount of the request: its path in the container, and :ro if it is read-only")
	f.StringArrayVar(&c.secrets, "secret", nil, "a secret that the orchestrator delivered")
	f.StringArrayVar(&c.env, "env", nil, "an environment variable, NAME=VALUE")
	f.BoolVar(&c.wasm, "wasm", false, "show paths and the argument as a WebAssembly program gets them")
	f.BoolVar(&c.asJSON, "json", false, "print JSON")
	return cmd
}

func (c *grantsCheck) answer(stdin io.Reader, path string) (*grantsAnswer, error) {
	asked, err := readDocument(stdin, path)
	if err != nil {
		return nil, err
	}
	var wish *grant.Document
	if c.wish != "" {
		if wish, err = readDocument(stdin, c.wish); err != nil {
			return nil, err
		}
	}
	var allowed *grant.Set
	if c.policy != "" {
		data, err := readBounded(stdin, c.policy)
		if err != nil {
			return nil, err
		}
		policy, err := document.ParsePolicy(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.policy, err)
		}
		allowed = policy.For(c.subject)
	}
	got, denied := grant.Decide(wish, asked, allowed)
	req, err := c.request(got)
	if err != nil {
		return nil, err
	}
	resolve := grant.Resolve
	if c.wasm {
		resolve = grant.ResolveWasm
	}
	r, err := resolve(got, req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &grantsAnswer{Descriptors: r.Descriptors, Denied: denied, Environment: r.Environment, Argument: string(r.Argdata)}, nil
}

// request returns the request of the flags, with the names of doc for missing flags.
func (c *grantsCheck) request(doc *grant.Document) (grant.Request, error) {
	req := grant.Request{Mounts: map[string]grant.Rights{}, Secrets: c.secrets, Env: c.env}
	for _, m := range c.mounts {
		path, readOnly := strings.CutSuffix(m, ":ro")
		if err := grant.CheckMountName(path); err != nil {
			return req, &base.UsageError{Err: fmt.Errorf("--mount: %w", err)}
		}
		if req.Mounts[path] = grant.AllRights; readOnly {
			req.Mounts[path] &^= grant.Write
		}
	}
	for _, e := range c.env {
		if !strings.Contains(e, "=") {
			return req, &base.UsageError{Err: fmt.Errorf("--env %q: give NAME=VALUE", e)}
		}
	}
	err := doc.Root.Walk(func(_ string, v *grant.Value) error {
		switch g := v.Grant; {
		case g.Kind == grant.Mount && c.mounts == nil:
			req.Mounts[g.Name] = grant.AllRights
		case g.Kind == grant.Secret && c.secrets == nil:
			req.Secrets = append(req.Secrets, g.Name)
		case g.Kind == grant.Env && c.env == nil && g.Name != "":
			req.Env = append(req.Env, g.Name+"=")
		}
		return nil
	})
	return req, err
}

func (c *grantsCheck) print(a *base.App, answer *grantsAnswer) error {
	var rows [][]string
	if !c.wasm {
		rows = append(rows, []string{strconv.Itoa(grant.ArgdataNumber), "", "the argument, " + strconv.Itoa(len(answer.Argument)) + " bytes"})
	}
	for _, d := range answer.Descriptors {
		number := strconv.Itoa(d.Number)
		if c.wasm {
			number = grant.WasmPath(d)
		}
		rows = append(rows, []string{number, d.Name, d.Grant.String()})
	}
	header := "DESCRIPTOR"
	if c.wasm {
		header = "PATH"
	}
	if err := base.Table(a.Stdout, []string{header, "AT", "GRANT"}, rows); err != nil {
		return err
	}
	for _, d := range answer.Denied {
		got := "nothing"
		if d.Given != "" {
			got = d.Given
		}
		if err := a.Print("denied: %s: %s asks for %s, gets %s\n", d.Pos, base.Printable(d.Path), base.Printable(d.Asked), base.Printable(got)); err != nil {
			return err
		}
	}
	return a.Print("argument: %s\n", base.Printable(answer.Argument))
}

func readDocument(stdin io.Reader, path string) (*grant.Document, error) {
	data, err := readBounded(stdin, path)
	if err != nil {
		return nil, err
	}
	doc, err := document.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return doc, nil
}

// readBounded reads no more of a file than a document may have, and one byte more, so that the reader detects a longer
// one.
func readBounded(stdin io.Reader, path string) ([]byte, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, grant.MaxDocument+1))
	if err != nil {
		var at *os.PathError
		if errors.As(err, &at) {
			return nil, err
		}
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}
