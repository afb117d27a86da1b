package command

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	"github.com/longshore/longshore/internal/hub/ca"
)

// with is a command that lists, with one below it.
func (a *app) with(inspect, list *cobra.Command) *cobra.Command {
	list.AddCommand(inspect)
	return a.asJSON(list)
}

// inspect is a command that prints all that is known of one thing, as JSON.
func (a *app) inspect(of, arg string) *cobra.Command {
	return &cobra.Command{Use: "inspect " + arg, Short: "Show all fields of an object, as JSON", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		var answer json.RawMessage
		if err := a.call(cmd.Context(), http.MethodGet, "/v1/"+of+"/"+url.PathEscape(args[0]), nil, &answer); err != nil {
			return err
		}
		enc := json.NewEncoder(a.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(answer)
	}}
}

// removes is a command that removes one thing of a kind.
func (a *app) removes(of, arg, short string) *cobra.Command {
	return &cobra.Command{Use: "rm " + arg, Short: short, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return a.call(cmd.Context(), http.MethodDelete, "/v1/"+of+"/"+url.PathEscape(args[0]), nil, &struct{}{})
	}}
}

func (a *app) rm() *cobra.Command {
	return a.asJSON(&cobra.Command{Use: "rm STACK", Short: "Remove a stack with everything in it", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		var diff []hubv1.Difference
		if err := a.call(cmd.Context(), http.MethodDelete, "/v1/stacks/"+url.PathEscape(args[0]), nil, &diff); err != nil {
			return err
		}
		return a.changes(diff)
	}})
}

func (a *app) authority() *cobra.Command {
	cmd := a.asJSON(&cobra.Command{Use: "ca", Short: "Show the root certificate of the fleet", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		var answer hubv1.Authority
		if err := a.call(cmd.Context(), http.MethodGet, "/v1/ca", nil, &answer); err != nil {
			return err
		}
		if a.json {
			return a.show(answer, "", nil)
		}
		if answer.Rotating {
			_, _ = fmt.Fprintf(a.Stderr, "root rotation in progress; nodes without a certificate of the new root: %s\n", strings.Join(answer.Missing, " "))
		}
		_, err := fmt.Fprint(a.Stdout, answer.Root)
		return err
	}})
	step := func(use, short string) {
		cmd.AddCommand(&cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(cmd.Context(), http.MethodPost, "/v1/ca/"+use, nil, &struct{}{})
		}})
	}
	step("rotate", "Rotate the root: nodes renew their certificates, and the old root is removed when all have")
	step("finish", "Finish the rotation without the nodes that have not renewed; these must join again")
	return cmd
}

// items are the commands for secrets, or those for configs.
func (a *app) items(kind string) *cobra.Command {
	of, arg := kind+"s", strings.ToUpper(kind)
	list := &cobra.Command{Use: "ls", Short: "List the " + of, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		var list []hubv1.Item
		if err := a.call(cmd.Context(), http.MethodGet, "/v1/"+of, nil, &list); err != nil {
			return err
		}
		return a.show(list, "ID\tNAME\tSTACK\tCREATED\tUSED BY", func(add func(...any)) {
			for _, i := range list {
				add(i.ID, i.Name, i.Stack, i.Created.Format(time.RFC3339), strings.Join(i.UsedBy, " "))
			}
		})
	}}
	create := &cobra.Command{Use: "create NAME FILE", Short: "Create a " + kind + " of a file; - is standard input", Args: cobra.ExactArgs(2), RunE: func(cmd *cobra.Command, args []string) error {
		data, err := a.read(args[1])
		if err != nil {
			return err
		}
		var i hubv1.Item
		if err := a.call(cmd.Context(), http.MethodPost, "/v1/"+of, hubv1.NewItem{Name: args[0], Data: data}, &i); err != nil {
			return err
		}
		_, err = fmt.Fprintln(a.Stdout, i.ID)
		return err
	}}
	group := &cobra.Command{Use: of, Short: "List, create and remove " + of}
	group.AddCommand(a.asJSON(list), create, a.inspect(of, arg), a.removes(of, arg, "Remove a "+kind+" that nothing uses"))
	return group
}

func (a *app) operator() *cobra.Command {
	group := &cobra.Command{Use: "operator", Short: "Manage operators, the users of the hub from other machines"}
	list := &cobra.Command{Use: "ls", Short: "List the operators", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		var list []hubv1.Operator
		if err := a.call(cmd.Context(), http.MethodGet, "/v1/operators", nil, &list); err != nil {
			return err
		}
		for _, o := range list {
			if o.Kind == ca.KindCertificate && ca.Reserved(o.Name) {
				_, _ = fmt.Fprintf(a.Stderr, "the name %s is reserved: remove this operator, create it under another name, and rotate the root with `longshore-hub ca rotate`\n", o.Name)
			}
		}
		return a.show(list, "NAME\tKIND\tSCOPE\tEXPIRES\tBY", func(add func(...any)) {
			for _, o := range list {
				add(o.Name, o.Kind, o.Scope, o.Expires.Format(time.RFC3339), o.By)
			}
		})
	}}
	group.AddCommand(a.asJSON(list), a.certificate(), a.operatorToken(), a.removes("operators", "NAME", "Revoke an operator's certificate or token"))
	return group
}

func scopeFlags(cmd *cobra.Command, n *hubv1.NewOperator) *cobra.Command {
	cmd.Flags().StringVar(&n.Scope, "scope", "read", "permissions: read, apply (also changes of stacks, services and nodes) or admin (everything)")
	cmd.Flags().IntVar(&n.Days, "days", 365, "validity in days")
	return cmd
}

func (a *app) operatorToken() *cobra.Command {
	var n hubv1.NewOperator
	return scopeFlags(&cobra.Command{Use: "token NAME", Short: "Create an operator with a token, which is shown once", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		n.Name = args[0]
		var c hubv1.Credentials
		if err := a.call(cmd.Context(), http.MethodPost, "/v1/operators", n, &c); err != nil {
			return err
		}
		_, err := fmt.Fprintln(a.Stdout, c.Token)
		return err
	}}, &n)
}

func (a *app) certificate() *cobra.Command {
	var n hubv1.NewOperator
	return scopeFlags(&cobra.Command{
		Use: "certificate NAME", Short: "Create an operator with a certificate: writes NAME.key, NAME.crt and ca.crt", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if n.Name = args[0]; strings.ContainsRune(n.Name, os.PathSeparator) {
				return errors.New("the operator's name is also the name of its files, and cannot have a slash")
			}
			key, csr, err := request()
			if err != nil {
				return err
			}
			// Its file comes first: a certificate whose key cannot be kept is of no use.
			if err := write(n.Name+".key", 0o600, key); err != nil {
				return err
			}
			n.Csr = string(csr)
			var c hubv1.Credentials
			if err := a.call(cmd.Context(), http.MethodPost, "/v1/operators", n, &c); err != nil {
				return errors.Join(err, os.Remove(n.Name+".key"))
			}
			if err := write(n.Name+".crt", 0o644, []byte(c.Certificate)); err != nil {
				return err
			}
			return os.WriteFile("ca.crt", []byte(c.Roots), 0o644)
		},
	}, &n)
}

// write writes a file that there is not.
func write(path string, mode os.FileMode, data []byte) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.Write(data)
	return err
}

// request makes a key and a request for a certificate, both as PEM.
func request() (key, csr []byte, err error) {
	made, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(made)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, made)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// stateOf tells the state of a node, and that it is banned.
func stateOf(n hubv1.Node) string {
	if n.Banned {
		return n.State + ", banned"
	}
	return n.State
}

// addressOf tells the address of a node, and all at which its certificate was in use at once.
func addressOf(n hubv1.Node) string {
	if len(n.Clones) > 0 {
		return "clones: " + strings.Join(n.Clones, ", ")
	}
	return n.Address
}

func (a *app) reauthorise() *cobra.Command {
	return &cobra.Command{Use: "reauthorise NODE ADDRESS", Short: "Admit a cloned node again, from one address, where it renews its certificate", Args: cobra.ExactArgs(2), RunE: func(cmd *cobra.Command, args []string) error {
		return a.call(cmd.Context(), http.MethodPost, "/v1/nodes/"+url.PathEscape(args[0])+"/reauthorise", hubv1.Reauthorisation{From: args[1]}, &struct{}{})
	}}
}

func (a *app) events() *cobra.Command {
	var after int64
	var follow bool
	cmd := &cobra.Command{Use: "events", Short: "Show events with their authors", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		enc := json.NewEncoder(a.Stdout)
		return c.Events(cmd.Context(), after, follow, func(e hubv1.Event) error {
			if a.json {
				return enc.Encode(e)
			}
			_, err := fmt.Fprintf(a.Stdout, "%d %s %s %s: %s\n", e.Cursor, e.Time.Format(time.RFC3339), e.Kind, printable(e.Who), printable(e.What))
			return err
		})
	}}
	cmd.Flags().Int64Var(&after, "after", 0, "only events after this cursor, the number at the beginning of each event")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow new events")
	return a.asJSON(cmd)
}
