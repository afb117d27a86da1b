package api_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/hub/api"
	"github.com/longshore/longshore/internal/hub/ca"
	hubevents "github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/hub/hubtest"
	"github.com/longshore/longshore/internal/hub/store"
)

// pair is a certificate with its key.
func pair(t *testing.T, key *ecdsa.PrivateKey, chain string) tls.Certificate {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.X509KeyPair([]byte(chain), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// remote is a client of a hub over TCP.
func remote(t *testing.T, h *hubtest.Hub, token string, certificates ...tls.Certificate) *api.Client {
	t.Helper()
	c, err := api.NewRemote(api.Remote{URL: h.Remote, Roots: h.CA.Authority.Roots(), Token: token, Certificates: certificates})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// operator makes an operator with a token.
func operator(t *testing.T, h *hubtest.Hub, n hubv1.NewOperator) hubv1.Credentials {
	t.Helper()
	var c hubv1.Credentials
	if err := api.NewClient(h.Socket).Call(hubtest.Within(t), http.MethodPost, "/v1/operators", n, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// refuses asserts that a client may not ask for the nodes.
func refuses(t *testing.T, what string, c *api.Client, text string) {
	t.Helper()
	var list []hubv1.Node
	if err := c.Call(hubtest.Within(t), http.MethodGet, "/v1/nodes", nil, &list); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want %q", what, err, text)
	}
}

// TestOperatorsOverTCP: by a certificate or a token, until it is taken from them, and nobody else.
func TestOperatorsOverTCP(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	key, csr := hubtest.Request(t)
	certificate := operator(t, h, hubv1.NewOperator{Name: "anna", Scope: "admin", Csr: string(csr)})
	token := operator(t, h, hubv1.NewOperator{Name: "robot", Scope: "read"})
	if certificate.Token != "" || token.Certificate != "" || certificate.Roots != string(h.CA.Authority.Roots()) {
		t.Errorf("got %+v, %+v", certificate, token)
	}
	anna, robot := remote(t, h, "", pair(t, key, certificate.Certificate)), remote(t, h, token.Token)
	for name, c := range map[string]*api.Client{"a certificate": anna, "a token": robot} {
		var list []hubv1.Node
		if err := c.Call(hubtest.Within(t), http.MethodGet, "/v1/nodes", nil, &list); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	h.Restart()
	var all []hubv1.Operator
	anna, robot = remote(t, h, "", pair(t, key, certificate.Certificate)), remote(t, h, token.Token)
	eventually(t, func(ctx context.Context) error { return anna.Call(ctx, http.MethodGet, "/v1/operators", nil, &all) })
	if len(all) != 2 || all[0].Name != "anna" || all[0].Kind != "certificate" || !strings.HasPrefix(all[0].By, "uid ") || all[1].Scope != "read" {
		t.Errorf("operators: %+v", all)
	}
	if h.Has(token.Token[len(token.Token)-50:]) {
		t.Error("the token is stored")
	}

	const unknown = "belongs to no operator"
	node := nodeCertificate(t, h)
	foreign, err := swarmtest.NewAuthority(t).Issue("anna", ca.RoleOperator, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	refuses(t, "nothing", remote(t, h, ""), "is required")
	refuses(t, "a changed token", remote(t, h, token.Token+"0"), unknown)
	refuses(t, "a token of another name", remote(t, h, strings.Replace(token.Token, "robot", "anna", 1)), unknown)
	refuses(t, "a join token", remote(t, h, h.CA.Authority.Token()), unknown)
	refuses(t, "a token that is none", remote(t, h, "_"), unknown)
	refuses(t, "another root's certificate", remote(t, h, "", pair(t, key, string(foreign))), "tls: ")
	refuses(t, "a node's certificate", remote(t, h, "", node), "tls: ")
	refuses(t, "a node's certificate beside an operator's token", remote(t, h, token.Token, node), "tls: ")
	// An operator is no node.
	_, err = h.Dial(hubtest.WithCertificate(t, key, []byte(certificate.Certificate)), nil).Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{})
	hubtest.Wants(t, "an operator as a node", err, codes.PermissionDenied, "not part of OUs")

	for _, name := range []string{"anna", "robot"} {
		if err := api.NewClient(h.Socket).Call(hubtest.Within(t), http.MethodDelete, "/v1/operators/"+name, nil, &struct{}{}); err != nil {
			t.Error(err)
		}
	}
	refuses(t, "a removed certificate", anna, unknown)
	refuses(t, "a removed token", robot, unknown)
	_, csr = hubtest.Request(t)
	operator(t, h, hubv1.NewOperator{Name: "anna", Scope: "admin", Csr: string(csr)})
	refuses(t, "the certificate of a former operator of the name", anna, unknown)
	for want, n := range map[string]hubv1.NewOperator{
		"the name of the operator": {Name: "../x", Scope: "read"},
		`"Swarm-Manager" is res`:   {Name: "Swarm-Manager", Scope: "read", Csr: string(csr)},
		`"swarm-ca" is reserved`:   {Name: "swarm-ca", Scope: "read"},
		`"longshore-hub" is rese`:  {Name: "longshore-hub", Scope: "admin", Csr: string(csr)},
		"is reserved: names that":  {Name: h.CA.Authority.Hub, Scope: "read"},
		"the scope":                {Name: "x", Scope: "root"},
		"at most 3650 days":        {Name: "x", Scope: "read", Days: 4000},
		"CSR Decode failed":        {Name: "x", Scope: "read", Csr: "garbage"},
	} {
		var c hubv1.Credentials
		if err := api.NewClient(h.Socket).Call(hubtest.Within(t), http.MethodPost, "/v1/operators", n, &c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestRemovalEndsRequestsInProgress: a stream that an operator reads ends when the operator is
// removed. That of another operator continues.
func TestRemovalEndsRequestsInProgress(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	key, csr := hubtest.Request(t)
	leaves := operator(t, h, hubv1.NewOperator{Name: "leaves", Scope: "read", Csr: string(csr)})
	stays := operator(t, h, hubv1.NewOperator{Name: "stays", Scope: "read"})
	follow := func(c *api.Client, each func(hubv1.Event) error) chan error {
		ended := make(chan error, 1)
		go func() { ended <- c.Events(hubtest.Within(t), 0, true, each) }()
		return ended
	}
	seen := make(chan string, 100)
	first := follow(remote(t, h, "", pair(t, key, leaves.Certificate)), func(e hubv1.Event) error { seen <- e.What; return nil })
	<-seen // it is in progress
	removed := make(chan struct{})
	second := follow(remote(t, h, stays.Token), func(e hubv1.Event) error {
		if strings.Contains(e.What, "after the removal") {
			close(removed)
		}
		return nil
	})
	if err := api.NewClient(h.Socket).Call(hubtest.Within(t), http.MethodDelete, "/v1/operators/leaves", nil, &struct{}{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-first:
	case <-hubtest.Within(t).Done():
		t.Fatal("the stream of an operator that was removed goes on")
	}
	hubtest.Commit(t, h, hubevents.Event{Kind: "test", What: "after the removal"}.Write())
	select {
	case <-removed:
	case err := <-second:
		t.Errorf("the stream of another operator ended: %v", err)
	}
}

// TestAnExchangedRootReachesOpenConnections: an operator's certificate of the root that was exchanged is
// refused by the connection too that began before.
func TestAnExchangedRootReachesOpenConnections(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	key, csr := hubtest.Request(t)
	anna := remote(t, h, "", pair(t, key, operator(t, h, hubv1.NewOperator{Name: "anna", Scope: "read", Csr: string(csr)}).Certificate))
	ask := func() error { return anna.Call(hubtest.Within(t), http.MethodGet, "/v1/nodes", nil, new([]hubv1.Node)) }
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	if err := h.CA.Authority.RotateRoot(hubtest.Within(t)); err != nil {
		t.Fatal(err)
	}
	for h.CA.Authority.Rotating() {
		changed := h.CA.Authority.Changed()
		if !h.CA.Authority.Rotating() {
			break
		}
		select {
		case <-changed:
		case <-hubtest.Within(t).Done():
			t.Fatal("the root is never exchanged")
		}
	}
	// A new connection would fail in its handshake, with another text.
	if err := ask(); err == nil || !strings.Contains(err.Error(), "belongs to no operator") {
		t.Errorf("by the connection that it has: %v", err)
	}
}

// TestAnOperatorsCertificateCannotServe: it names no host, and is of use to a client alone.
func TestAnOperatorsCertificateCannotServe(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	_, csr := hubtest.Request(t)
	block, _ := pem.Decode([]byte(operator(t, h, hubv1.NewOperator{Name: "anna", Scope: "admin", Csr: string(csr)}).Certificate))
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if len(leaf.DNSNames) != 0 || len(leaf.ExtKeyUsage) != 1 || leaf.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth || leaf.Subject.OrganizationalUnit[0] != ca.RoleOperator {
		t.Errorf("names %v, uses %v, role %v", leaf.DNSNames, leaf.ExtKeyUsage, leaf.Subject.OrganizationalUnit)
	}
}

// nodeCertificate is the certificate of a node that has joined.
func nodeCertificate(t *testing.T, h *hubtest.Hub) tls.Certificate {
	t.Helper()
	key, csr := hubtest.Request(t)
	stranger := h.Dial(hubtest.Raw{}, nil)
	joined, err := stranger.NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr, Token: h.CA.Authority.Token()})
	if err != nil {
		t.Fatal(err)
	}
	st, err := stranger.NodeCA.NodeCertificateStatus(hubtest.Within(t), &swarmv1.NodeCertificateStatusRequest{NodeId: joined.GetNodeId()})
	if err != nil {
		t.Fatal(err)
	}
	return pair(t, key, string(st.GetCertificate().GetCertificate()))
}

// eventually tries until it succeeds: a hub reads its operators while it serves already.
func eventually(t *testing.T, fn func(ctx context.Context) error) {
	t.Helper()
	ctx := hubtest.Within(t)
	for {
		err := fn(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(errors.Join(err, context.Cause(ctx)))
		}
	}
}

// TestScopes: each route of the description, asked for by operators of each scope, and by nobody.
func TestScopes(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	tokens := map[string]string{"": ""}
	order := []string{"", "read", "apply", "admin"}
	for _, scope := range order[1:] {
		tokens[scope] = operator(t, h, hubv1.NewOperator{Name: scope, Scope: scope}).Token
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer c.CloseIdleConnections()
	ask := func(method, path, scope string) int {
		req, err := http.NewRequestWithContext(hubtest.Within(t), method, h.Remote+strings.ReplaceAll(path, "{id}", "none"), bytes.NewReader([]byte("garbage")))
		if err != nil {
			t.Fatal(err)
		}
		if scope != "" {
			req.Header.Set("Authorization", "Bearer "+tokens[scope])
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	routes := 0
	for _, r := range described(t) {
		if r.path == "/v1/ca/rotate" { // it would begin
			continue
		}
		routes++
		for i, scope := range order {
			code := ask(r.method, r.path, scope)
			switch {
			case scope == "" && code != http.StatusUnauthorized,
				scope != "" && i < r.needs && code != http.StatusForbidden,
				i >= r.needs && (code == http.StatusUnauthorized || code == http.StatusForbidden || code == http.StatusMethodNotAllowed):
				t.Errorf("%s %s by %q: %d", r.method, r.path, scope, code)
			}
		}
	}
	if routes < 20 {
		t.Errorf("%d routes were found", routes)
	}
	if code := ask(http.MethodGet, "/v1/unknown", ""); code != http.StatusUnauthorized {
		t.Errorf("a route that there is not, asked for by nobody: %d", code)
	}
}

// route is one of the description; needs is the place of its scope in "", read, apply, admin.
type route struct {
	method, path string
	needs        int
}

// described are the routes of the description.
func described(t *testing.T) (list []route) {
	t.Helper()
	path, method := regexp.MustCompile(`^  (/\S+):$`), regexp.MustCompile(`^    (get|put|post|patch|delete):$`)
	security := regexp.MustCompile(`^      security: \[\{(\w+): \[\]\}\]$`)
	lines, at := bufio.NewScanner(bytes.NewReader(hubv1.Description)), ""
	for lines.Scan() {
		if m := path.FindStringSubmatch(lines.Text()); m != nil {
			at = m[1]
		} else if m := method.FindStringSubmatch(lines.Text()); m != nil {
			list = append(list, route{strings.ToUpper(m[1]), at, 3}) // admin is the default
		} else if m := security.FindStringSubmatch(lines.Text()); m != nil {
			list[len(list)-1].needs = map[string]int{"read": 1, "apply": 2, "admin": 3}[m[1]]
		}
	}
	return list
}

// TestAsManyChangesAsATransactionHas: one declaration may change that many things, and not one more; then nothing is stored.
func TestAsManyChangesAsATransactionHas(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	c := api.NewClient(h.Socket)
	ctx := hubtest.Within(t)
	d := fleet.Declaration{Name: "shop", Configs: map[string][]byte{}}
	const most = store.MaxWrites - 2 // the transaction also has the turn and an event
	for i := range most + 1 {
		d.Configs[fmt.Sprint("c", i)] = []byte("x")
	}
	if _, err := c.Apply(ctx, d, false); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("changes %d things at once; at most %d", most+1, most)) {
		t.Errorf("one too many: %v", err)
	}
	if n := len(h.Inventory.Configs()); n > 0 {
		t.Errorf("%d are stored", n)
	}
	delete(d.Configs, "c0")
	if diff, err := c.Apply(ctx, d, false); err != nil || len(diff) != most {
		t.Errorf("as many as possible: %d, %v", len(diff), err)
	}
}

// TestSecretsAndConfigs that belong to no stack: their services keep them, and a secret's value is
// never shown.
func TestSecretsAndConfigs(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	c := api.NewClient(h.Socket)
	ctx := hubtest.Within(t)
	if _, err := c.Apply(ctx, declare(t, nil), false); err != nil { // a round of scheduling, which sweeps
		t.Fatal(err)
	}
	for _, of := range []string{"secrets", "configs"} {
		var i hubv1.Item
		if err := c.Call(ctx, http.MethodPost, "/v1/"+of, hubv1.NewItem{Name: "mine", Data: []byte("planted-secret")}, &i); err != nil || i.ID == "" {
			t.Fatalf("%s: %+v, %v", of, i, err)
		}
		for want, n := range map[string]hubv1.NewItem{
			"there is a":         {Name: "mine", Data: []byte("x")},
			"the name of the":    {Name: "../x", Data: []byte("x")},
			"from 1 to 512000":   {Name: "empty"},
			"has 512001 bytes, ": {Name: "large", Data: make([]byte, 500<<10+1)},
		} {
			if err := c.Call(ctx, http.MethodPost, "/v1/"+of, n, &hubv1.Item{}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %s: %v", of, want, err)
			}
		}
		var list []hubv1.Item
		if err := c.Call(ctx, http.MethodGet, "/v1/"+of, nil, &list); err != nil {
			t.Error(err)
		}
		_, answer := ask(t, h, http.MethodGet, "/v1/"+of+"/mine", nil)
		if list[0].Name != "mine" || list[0].Data != nil || strings.Contains(answer, `"data"`) != (of == "configs") {
			t.Errorf("%s: %+v, %s", of, list, answer)
		}
		if of == "secrets" {
			if len(list) != 2 || len(list[1].UsedBy) != 1 || list[1].UsedBy[0] != "shop_web" || list[1].Stack != "shop" {
				t.Errorf("the stack's secret: %+v", list)
			}
			if err := c.Call(ctx, http.MethodDelete, "/v1/secrets/shop_key", nil, &struct{}{}); err == nil || !strings.Contains(err.Error(), "is in use by the following services: shop_web") {
				t.Errorf("removed what is used: %v", err)
			}
		}
		if err := c.Call(ctx, http.MethodDelete, "/v1/"+of+"/mine", nil, &struct{}{}); err != nil {
			t.Error(err)
		}
		if err := c.Call(ctx, http.MethodDelete, "/v1/"+of+"/mine", nil, &struct{}{}); err == nil || !strings.Contains(err.Error(), "there is no") {
			t.Errorf("removed twice: %v", err)
		}
	}
	borrow := declare(t, nil)
	borrow.Name, borrow.Secrets, borrow.ExternalSecrets = "other", nil, map[string]fleet.External{"key": {Name: "mine", At: "stack.yaml:7"}}
	if _, err := c.Apply(ctx, borrow, true); err == nil || !strings.Contains(err.Error(), "stack.yaml:7: secrets.key is external, and there is no secret mine") {
		t.Errorf("a secret that is not there: %v", err)
	}
	borrow.ExternalSecrets["key"] = fleet.External{Name: "shop_key"}
	if _, err := c.Apply(ctx, borrow, false); err != nil {
		t.Fatal(err)
	}
	var shared hubv1.Item
	if err := c.Call(ctx, http.MethodGet, "/v1/secrets/shop_key", nil, &shared); err != nil || strings.Join(shared.UsedBy, " ") != "other_web shop_web" || len(h.Inventory.Secrets()) != 1 {
		t.Errorf("a secret of two stacks: %+v, %v", shared, err)
	}
	var diff []hubv1.Difference
	if err := c.Call(ctx, http.MethodDelete, "/v1/stacks/other", nil, &diff); err != nil || changes(diff) != "remove service web" {
		t.Errorf("%v, %v", diff, err)
	}
	if err := c.Call(ctx, http.MethodDelete, "/v1/stacks/shop", nil, &diff); err != nil || changes(diff) != "remove service web" {
		t.Errorf("%v, %v", diff, err)
	}
	if err := c.Call(ctx, http.MethodDelete, "/v1/stacks/shop", nil, &diff); err == nil || !strings.Contains(err.Error(), "there is no stack") {
		t.Errorf("removed twice: %v", err)
	}
	hubtest.Until(t, h, "what the stack declared is gone", func() bool { return len(h.Inventory.Secrets()) == 0 })
}
