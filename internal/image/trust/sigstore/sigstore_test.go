package sigstore

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
	"github.com/sigstore/sigstore-go/pkg/tlog"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/trust"
)

const (
	signer = "builder@example.com"
	issuer = "https://issuer.example"
)

var (
	image = digest.FromString("an image")
	other = digest.FromString("another image")
)

// world is the test's own sigstore.
type world struct {
	*ca.VirtualSigstore
	t *testing.T
}

func newWorld(t *testing.T) world {
	t.Helper()
	vs, err := ca.NewVirtualSigstoreWithExistingRekorEntry()
	if err != nil {
		t.Fatal(err)
	}
	return world{vs, t}
}

// root is the world's trusted_root.json, with or without its log.
func (w world) root(withLog bool) []byte {
	w.t.Helper()
	logs := map[string]*root.TransparencyLog{}
	for id, l := range w.RekorLogs() {
		raw, err := hex.DecodeString(id)
		if err != nil {
			w.t.Fatal(err)
		}
		l.ID = raw
		if withLog {
			logs[id] = l
		}
	}
	tr, err := root.NewTrustedRoot(root.TrustedRootMediaType01, w.FulcioCertificateAuthorities(), nil, w.TimestampingAuthorities(), logs)
	if err != nil {
		w.t.Fatal(err)
	}
	b, err := tr.MarshalJSON()
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// payload is the text that cosign's first layout signs.
func payload(d digest.Digest) []byte {
	return fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":"r.example/a"},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, d)
}

func statement(d digest.Digest, predicate string) []byte {
	return fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`, d.Encoded(), predicate)
}

// simple signs in cosign's first layout, keyless.
func (w world) simple(body []byte) trust.Simple {
	w.t.Helper()
	e, err := w.Sign(signer, issuer, body)
	if err != nil {
		w.t.Fatal(err)
	}
	sig, _ := e.SignatureContent()
	content, _ := e.VerificationContent()
	entries, _ := e.TlogEntries()
	stamps, _ := e.Timestamps()
	return trust.Simple{
		Payload: body, Signature: base64.StdEncoding.EncodeToString(sig.Signature()),
		Certificate: pemOf("CERTIFICATE", content.Certificate().Raw), Log: w.annotation(entries[0].TransparencyLogEntry()),
		Timestamp: jsonOf(w.t, map[string]any{"SignedRFC3161Timestamp": stamps[0]}),
	}
}

// annotation is the log's answer as cosign stores it.
func (w world) annotation(e *protorekor.TransparencyLogEntry) string {
	w.t.Helper()
	p := tlog.RekorPayload{
		Body: base64.StdEncoding.EncodeToString(e.CanonicalizedBody), IntegratedTime: e.IntegratedTime, LogIndex: e.LogIndex,
		LogID: hex.EncodeToString(e.LogId.KeyId),
	}
	set, err := w.RekorSignPayload(p)
	if err != nil {
		w.t.Fatal(err)
	}
	return jsonOf(w.t, map[string]any{"SignedEntryTimestamp": set, "Payload": p})
}

// bundle signs a statement in the present layout, keyless.
func (w world) bundle(body []byte) []byte {
	w.t.Helper()
	e, err := w.AttestAtTime(signer, issuer, body, time.Now().Add(5*time.Minute), true)
	if err != nil {
		w.t.Fatal(err)
	}
	sig, _ := e.SignatureContent()
	content, _ := e.VerificationContent()
	entries, _ := e.TlogEntries()
	stamps, _ := e.Timestamps()
	env := sig.EnvelopeContent().RawEnvelope()
	rawSig, err := base64.StdEncoding.DecodeString(env.Signatures[0].Sig)
	if err != nil {
		w.t.Fatal(err)
	}
	entry := entries[0].TransparencyLogEntry()
	entry.KindVersion = &protorekor.KindVersion{Kind: "dsse", Version: "0.0.1"}
	return marshal(w.t, &protobundle.Bundle{
		MediaType: "application/vnd.dev.sigstore.bundle.v0.3+json",
		VerificationMaterial: &protobundle.VerificationMaterial{
			Content:                   &protobundle.VerificationMaterial_Certificate{Certificate: &protocommon.X509Certificate{RawBytes: content.Certificate().Raw}},
			TlogEntries:               []*protorekor.TransparencyLogEntry{entry},
			TimestampVerificationData: &protobundle.TimestampVerificationData{Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: stamps[0]}}},
		},
		Content: &protobundle.Bundle_DsseEnvelope{DsseEnvelope: &protodsse.Envelope{
			Payload: body, PayloadType: env.PayloadType, Signatures: []*protodsse.Signature{{Sig: rawSig}},
		}},
	})
}

func marshal(t *testing.T, b *protobundle.Bundle) []byte {
	t.Helper()
	raw, err := protojson.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// key is somebody's key pair.
type key struct{ imagetest.Signer }

func newKey(t *testing.T) key {
	t.Helper()
	return key{imagetest.NewSigner(t)}
}

func (k key) simple(t *testing.T, body []byte) trust.Simple {
	t.Helper()
	return trust.Simple{Payload: body, Signature: base64.StdEncoding.EncodeToString(k.Sign(body))}
}

// bundle signs a statement in the present layout.
func (k key) bundle(t *testing.T, body []byte) []byte {
	t.Helper()
	const kind = "application/vnd.in-toto+json"
	signed := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(body), body)
	return marshal(t, &protobundle.Bundle{
		MediaType: "application/vnd.dev.sigstore.bundle.v0.3+json",
		VerificationMaterial: &protobundle.VerificationMaterial{
			Content: &protobundle.VerificationMaterial_PublicKey{PublicKey: &protocommon.PublicKeyIdentifier{Hint: "whatever"}},
		},
		Content: &protobundle.Bundle_DsseEnvelope{DsseEnvelope: &protodsse.Envelope{
			Payload: body, PayloadType: kind, Signatures: []*protodsse.Signature{{Sig: k.Sign(signed)}},
		}},
	})
}

// answer runs a question as the agent does.
func answer(t *testing.T, q trust.Question) (int, string) {
	t.Helper()
	var out bytes.Buffer
	code := Main(strings.NewReader(jsonOf(t, q)), &out)
	return code, out.String()
}

func wants(t *testing.T, name string, q trust.Question, code int, says string) {
	t.Helper()
	q.Digest = image
	if got, text := answer(t, q); got != code || !strings.Contains(text, says) {
		t.Errorf("%s: %d, %s; want %d, %q", name, got, text, code, says)
	}
}

func TestKeys(t *testing.T) {
	ours, theirs := newKey(t), newKey(t)
	keys := [][]byte{theirs.Public, ours.Public}
	simple := func(s trust.Simple) trust.Evidence { return trust.Evidence{Simple: []trust.Simple{s}} }
	bundle := func(b []byte) trust.Evidence { return trust.Evidence{Bundles: [][]byte{b}} }
	good := ours.simple(t, payload(image))
	tampered := good
	tampered.Payload = append(bytes.Clone(good.Payload), ' ')
	for name, tt := range map[string]struct {
		e    trust.Evidence
		keys [][]byte
		code int
		says string
	}{
		"first layout":           {simple(good), keys, 0, "the key sha256:"},
		"bundle":                 {bundle(ours.bundle(t, statement(image, signPredicate))), keys, 0, "the key sha256:"},
		"one good of three":      {trust.Evidence{Simple: []trust.Simple{{}, tampered, good}, Bundles: [][]byte{[]byte("{}")}}, keys, 0, "the key"},
		"another's key":          {simple(good), [][]byte{theirs.Public}, 1, "no signature is valid"},
		"another image":          {simple(ours.simple(t, payload(other))), keys, 1, other.String()},
		"another image, bundle":  {bundle(ours.bundle(t, statement(other, signPredicate))), keys, 1, "verify"},
		"tampered":               {simple(tampered), keys, 1, "no signature is valid"},
		"an attestation":         {bundle(ours.bundle(t, statement(image, "https://slsa.dev/provenance/v1"))), keys, 1, "attestation"},
		"not about an image":     {simple(ours.simple(t, []byte(`{"critical":{"type":"x"}}`))), keys, 1, "not an image"},
		"nothing":                {trust.Evidence{}, keys, 1, "no signature"},
		"no key in the file":     {simple(good), [][]byte{[]byte("x")}, 2, "key 1"},
		"nobody to have signed":  {simple(good), nil, 2, "neither keys nor identities"},
		"a signature of nothing": {simple(trust.Simple{Payload: payload(image)}), keys, 1, "base64"},
	} {
		wants(t, name, trust.Question{Evidence: tt.e, Keys: tt.keys}, tt.code, tt.says)
	}
	if code, text := answer(t, trust.Question{Digest: "sha512:x", Keys: keys}); code != 2 {
		t.Errorf("no digest: %d, %s", code, text)
	}
}

// TestKeysWithARootWantTheLog: with a trusted root, everything that it can verify is required.
func TestKeysWithARootWantTheLog(t *testing.T) {
	k, w := newKey(t), newWorld(t)
	q := trust.Question{Evidence: trust.Evidence{Simple: []trust.Simple{k.simple(t, payload(image))}}, Keys: [][]byte{k.Public}}
	wants(t, "without a root", q, 0, "the key")
	q.TrustedRoot = w.root(true)
	wants(t, "not in the log", q, 1, "log")
	// An entry for another signature does not help.
	q.Evidence.Simple[0].Log = w.simple(payload(image)).Log
	wants(t, "another's entry", q, 1, "log")
}

func TestIdentities(t *testing.T) {
	w, elsewhere := newWorld(t), newWorld(t)
	exact := trust.Identity{Subject: signer, Issuer: issuer}
	simple := trust.Evidence{Simple: []trust.Simple{w.simple(payload(image))}}
	bundle := trust.Evidence{Bundles: [][]byte{w.bundle(statement(image, signPredicate))}}
	unlogged := trust.Evidence{Simple: []trust.Simple{w.simple(payload(image))}}
	unlogged.Simple[0].Log = ""
	unstamped := trust.Evidence{Simple: []trust.Simple{unlogged.Simple[0]}}
	unstamped.Simple[0].Timestamp = ""
	for name, tt := range map[string]struct {
		e    trust.Evidence
		root []byte
		ids  []trust.Identity
		code int
		says string
	}{
		"first layout":       {simple, w.root(true), []trust.Identity{exact}, 0, signer},
		"bundle":             {bundle, w.root(true), []trust.Identity{exact}, 0, issuer},
		"the second of two":  {simple, w.root(true), []trust.Identity{{Subject: "x", Issuer: issuer}, exact}, 0, signer},
		"by expression":      {bundle, w.root(true), []trust.Identity{{SubjectRegexp: ".*@example.com", IssuerRegexp: "https://.*"}}, 0, signer},
		"not in the log":     {unlogged, w.root(true), []trust.Identity{exact}, 1, "log"},
		"a root without log": {unlogged, w.root(false), []trust.Identity{exact}, 0, signer},
		"at no known time":   {unstamped, w.root(false), []trust.Identity{exact}, 1, "time"},
		"another signer":     {simple, w.root(true), []trust.Identity{{Subject: "mallory@example.com", Issuer: issuer}}, 1, "identity"},
		"another issuer":     {bundle, w.root(true), []trust.Identity{{Subject: signer, Issuer: "https://evil.example"}}, 1, "identity"},
		"part of the name":   {simple, w.root(true), []trust.Identity{{SubjectRegexp: "builder", Issuer: issuer}}, 1, "identity"},
		"another world":      {simple, elsewhere.root(true), []trust.Identity{exact}, 1, "no signature is valid"},
		"another image":      {trust.Evidence{Bundles: [][]byte{w.bundle(statement(other, signPredicate))}}, w.root(true), []trust.Identity{exact}, 1, "verify"},
		"an attestation":     {trust.Evidence{Bundles: [][]byte{w.bundle(statement(image, "https://spdx.dev/Document"))}}, w.root(true), []trust.Identity{exact}, 1, "attestation"},
		"no root":            {simple, nil, []trust.Identity{exact}, 2, "trusted root"},
		"no root at all":     {simple, []byte("{}"), []trust.Identity{exact}, 2, "trusted root"},
	} {
		wants(t, name, trust.Question{Evidence: tt.e, TrustedRoot: tt.root, Identities: tt.ids}, tt.code, tt.says)
	}
}

// TestACertificateIsNoKey: a rule with keys only does not accept a certificate.
func TestACertificateIsNoKey(t *testing.T) {
	w, k := newWorld(t), newKey(t)
	e := trust.Evidence{Simple: []trust.Simple{w.simple(payload(image))}, Bundles: [][]byte{w.bundle(statement(image, signPredicate))}}
	wants(t, "keyless", trust.Question{Evidence: e, Keys: [][]byte{k.Public}}, 1, "no signature is valid")
	wants(t, "keyless, with its root", trust.Question{Evidence: e, Keys: [][]byte{k.Public}, TrustedRoot: w.root(true)}, 1, "no signature is valid")
}
