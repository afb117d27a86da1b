package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
)

// TestSBOMHasWhatGoVersionSays compares the document of this test's own program with `go version -m`.
func TestSBOMHasWhatGoVersionSays(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	first, second := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	for _, output := range []string{first, second} {
		if err := run([]string{"sbom", "1.2.3", "1000000000", output, program}, ""); err != nil {
			t.Fatal(err)
		}
	}
	a, errA := os.ReadFile(first)
	b, errB := os.ReadFile(second)
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Fatalf("two documents of one program differ: %v, %v", errA, errB)
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(a), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if bom.Metadata.Timestamp != "2001-09-09T01:46:40Z" || bom.Metadata.Component.Version != "1.2.3" {
		t.Errorf("metadata: %+v", bom.Metadata)
	}
	var got, want []string
	for _, c := range *bom.Components {
		if c.Type == cdx.ComponentTypeLibrary && c.Name != "std" {
			got = append(got, c.Name+" "+c.Version)
		}
	}
	out, err := exec.CommandContext(t.Context(), "go", "version", "-m", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == "dep" {
			want = append(want, f[1]+" "+f[2])
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || len(want) < 2 {
		t.Errorf("the document has %v\nthe program has %v", got, want)
	}
}

func TestSBOMOfNoProgram(t *testing.T) {
	dir := t.TempDir()
	text, output := filepath.Join(dir, "text"), filepath.Join(dir, "out")
	if err := os.WriteFile(text, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"sbom", "1", "0", output, text}, ""); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("a text file: %v", err)
	}
	if err := run([]string{"sbom", "1", "yesterday", output, text}, ""); err == nil || !strings.Contains(err.Error(), "yesterday") {
		t.Errorf("no time: %v", err)
	}
	if _, err := os.Stat(output); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the output: %v", err)
	}
}

// TestCosignAcceptsSignatures signs with keys of each form, and verifies with the library that cosign uses.
func TestCosignAcceptsSignatures(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err8 := x509.MarshalPKCS8PrivateKey(key)
	sec1, err1 := x509.MarshalECPrivateKey(key)
	secret, errS := encrypted.Encrypt(pkcs8, []byte("password"))
	if err := errors.Join(err8, err1, errS); err != nil {
		t.Fatal(err)
	}
	verifier, err := signature.LoadECDSAVerifier(&key.PublicKey, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	for kind, der := range map[string][]byte{"PRIVATE KEY": pkcs8, "EC PRIVATE KEY": sec1, "ENCRYPTED SIGSTORE PRIVATE KEY": secret, "ENCRYPTED COSIGN PRIVATE KEY": secret} {
		dir := t.TempDir()
		file, keyFile := filepath.Join(dir, "file"), filepath.Join(dir, "key")
		content := []byte("content of " + kind)
		if err := errors.Join(os.WriteFile(file, content, 0o600), os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := run([]string{"sign", keyFile, file}, "password"); err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		text, err := os.ReadFile(file + ".sig")
		if err != nil {
			t.Fatal(err)
		}
		sig, err := base64.StdEncoding.DecodeString(string(text))
		if err != nil {
			t.Fatalf("%s: %q: %v", kind, text, err)
		}
		if err := verifier.VerifySignature(bytes.NewReader(sig), bytes.NewReader(content)); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if err := verifier.VerifySignature(bytes.NewReader(sig), bytes.NewReader(append(content, 'x'))); err == nil {
			t.Errorf("%s: the signature is accepted for another file", kind)
		}
	}
}

func TestKeysThatCosignDoesNotUse(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := encrypted.Encrypt(p384, []byte("password"))
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	dir := t.TempDir()
	file, keyFile := filepath.Join(dir, "file"), filepath.Join(dir, "key")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, text := range map[string][]byte{
		"P-256":           encode("PRIVATE KEY", p384),
		"no key in PEM":   []byte("ssh-ed25519 AAAA"),
		"PUBLIC KEY":      encode("PUBLIC KEY", nil),
		"asn1":            encode("EC PRIVATE KEY", []byte("damaged")),
		"COSIGN_PASSWORD": encode("ENCRYPTED SIGSTORE PRIVATE KEY", secret),
	} {
		if err := os.WriteFile(keyFile, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run([]string{"sign", keyFile, file}, "wrong"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("wanted an error with %q, got %v", want, err)
		}
		if _, err := os.Stat(file + ".sig"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a signature: %v", want, err)
		}
	}
}

// TestNewKey reads a new key pair with the library that cosign uses, and signs with it.
func TestNewKey(t *testing.T) {
	dir := t.TempDir()
	keyFile, publicFile, file := filepath.Join(dir, "cosign.key"), filepath.Join(dir, "cosign.pub"), filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"key", keyFile, publicFile}, ""); err == nil || !strings.Contains(err.Error(), "COSIGN_PASSWORD") {
		t.Errorf("a key without a password: %v", err)
	}
	if err := run([]string{"key", keyFile, file}, "password"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a public key over a file: %v", err)
	}
	if _, err := os.Stat(keyFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a key without its public key is left: %v", err)
	}
	if err := run([]string{"key", keyFile, publicFile}, "password"); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"key", keyFile, publicFile + "2"}, "password"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second key over the first: %v", err)
	}
	if info, err := os.Stat(keyFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info.Mode(), err)
	}
	text, err := os.ReadFile(publicFile)
	if err != nil {
		t.Fatal(err)
	}
	public, err := cryptoutils.UnmarshalPEMToPublicKey(text)
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := signature.LoadVerifier(public, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"sign", keyFile, file}, "password"); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(file + ".sig"); err != nil {
		t.Fatal(err)
	}
	sig, err := base64.StdEncoding.DecodeString(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := verifier.VerifySignature(bytes.NewReader(sig), strings.NewReader("content")); err != nil {
		t.Errorf("the signature: %v", err)
	}
	if err := verifier.VerifySignature(bytes.NewReader(sig), strings.NewReader("other content")); err == nil {
		t.Error("the signature is right for other content")
	}
}
