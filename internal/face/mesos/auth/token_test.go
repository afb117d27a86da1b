package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"strings"
	"testing"
	"time"
)

func encode(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// signed is a token of these two parts.
func signed(key, header, payload string) string {
	text := encode(header) + "." + encode(payload)
	mac := hmac.New(sha256.New, []byte(key))
	_, _ = mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

const (
	key   = "a key\n"
	hs    = `{"alg":"HS256","typ":"JWT"}`
	clock = 1_700_000_000 // Unix seconds
)

// TestTheStandardsExample is the token of RFC 7515, A.1, which expired in 2011.
func TestTheStandardsExample(t *testing.T) {
	secret, err := base64.RawURLEncoding.DecodeString("AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow")
	if err != nil {
		t.Fatal(err)
	}
	const text = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
	got, err := tokenKey(secret).claims(text, time.Unix(1300819380, 0))
	if want := map[string]string{"iss": "joe", "exp": "1300819380", "http://example.com/is_root": "true"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := tokenKey(secret).claims(text, time.Unix(1300819381, 0)); err == nil || err.Error() != "Token has expired: exp(1300819380) < now(1300819381)" || got != nil {
		t.Errorf("a second later: %v, %v", got, err)
	}
}

func TestTokens(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		want  map[string]string
		wrong string
	}{
		"an executor's": {
			text: signed(key, hs, `{"fid":"f","eid":"e","cid":"c \u00e9","n":1.5,"list":[1, {"a": null}],"gone":null,"exp":1700000000}`),
			want: map[string]string{"fid": "f", "eid": "e", "cid": "c é", "n": "1.5", "list": `[1,{"a":null}]`, "exp": "1700000000"},
		},
		"nobody's":                   {text: signed(key, hs, `{}`), want: map[string]string{}},
		"padded":                     {text: signed(key, hs, `{"cid":"c"}`) + "==", want: map[string]string{"cid": "c"}},
		"without a type":             {text: signed(key, `{"alg":"HS256","typ":null}`, `{"cid":"c"}`), want: map[string]string{"cid": "c"}},
		"nothing":                    {text: "", wrong: "Expected 3 components in token, got 1"},
		"too much":                   {text: "a.b.c.d", wrong: "Expected 3 components in token, got 4"},
		"a header that is none":      {text: "e!.b.c", wrong: "Failed to decode token header: Failed to base64url-decode: Invalid character '!'"},
		"another alphabet":           {text: encode(hs) + ".e30." + "a+b/", wrong: "Failed to base64url-decode token signature: Invalid character '+'"},
		"a header that is no JSON":   {text: encode("{") + ".b.c", wrong: "Failed to decode token header: Failed to parse into JSON: "},
		"a header that is no object": {text: encode("null") + ".b.c", wrong: "Failed to decode token header: Failed to parse into JSON: it is not an object"},
		"two headers":                {text: encode(hs+hs) + ".b.c", wrong: "Failed to decode token header: Failed to parse into JSON: "},
		"a type of another kind":     {text: signed(key, `{"typ":1,"alg":"HS256"}`, `{}`), wrong: "Token 'typ' is not a string"},
		"no algorithm":               {text: signed(key, `{"typ":"JWT"}`, `{}`), wrong: "Failed to locate 'alg' in token JSON header"},
		"an algorithm of no name":    {text: signed(key, `{"alg":["HS256"]}`, `{}`), wrong: "Token 'alg' field is not a string"},
		"an unknown algorithm":       {text: signed(key, `{"alg":"hs256"}`, `{}`), wrong: "Unsupported token algorithm: hs256"},
		"one that needs no key":      {text: encode(`{"alg":"none"}`) + ".e30.", wrong: `Token 'alg' value "none" does not match, expected "HS256"`},
		"one with another key":       {text: signed(key, `{"alg":"RS256"}`, `{}`), wrong: `Token 'alg' value "RS256" does not match, expected "HS256"`},
		"an extension":               {text: signed(key, `{"alg":"HS256","crit":["exp"]}`, `{}`), wrong: "Token 'crit' field is unsupported"},
		"no claims":                  {text: encode(hs) + "..c", wrong: "Failed to decode token payload: Failed to parse into JSON: "},
		"claims that are a list":     {text: signed(key, hs, `[]`), wrong: "Failed to decode token payload: Failed to parse into JSON: "},
		"a time that is none":        {text: signed(key, hs, `{"exp":"1700000001"}`), wrong: "JSON payload 'exp' field is not a number"},
		"a time that is over":        {text: signed(key, hs, `{"exp":1699999999.9}`), wrong: "Token has expired: exp(1699999999) < now(1700000000)"},
		"another's key":              {text: signed("a key", hs, `{"cid":"c"}`), wrong: "Token signature does not match"},
		"no signature":               {text: encode(hs) + "." + encode(`{"cid":"c"}`) + ".", wrong: "Token signature does not match"},
		"other claims":               {text: strings.Replace(signed(key, hs, `{"cid":"c"}`), encode(`{"cid":"c"}`), encode(`{"cid":"d"}`), 1), wrong: "Token signature does not match"},
	} {
		got, err := tokenKey(key).claims(c.text, time.Unix(clock, 0))
		switch {
		case c.wrong == "" && (err != nil || !maps.Equal(got, c.want)):
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		case c.wrong != "" && (err == nil || !strings.HasPrefix(err.Error(), c.wrong) || got != nil):
			t.Errorf("%s: %v, %v, want %s", name, got, err, c.wrong)
		}
	}
}

// FuzzClaims: a token not signed with the key has no claims, and a signed one is read without a
// panic.
func FuzzClaims(f *testing.F) {
	f.Add(hs, `{"cid":"c","exp":1e300}`, "e30.e30.e30")
	f.Add(`{"alg":"none"}`, `{}`, "...")
	f.Fuzz(func(t *testing.T, header, payload, foreign string) {
		now := time.Unix(clock, 0)
		if claims, err := tokenKey(key).claims(foreign, now); err == nil || claims != nil {
			t.Errorf("%q was taken: %v", foreign, claims)
		}
		text := signed(key, header, payload)
		if claims, err := tokenKey("other").claims(text, now); err == nil || claims != nil {
			t.Errorf("%q of another key was taken: %v", text, claims)
		}
		if claims, err := tokenKey(key).claims(text, now); (err == nil) != (claims != nil) {
			t.Errorf("%q: %v, %v", text, claims, err)
		}
	})
}
