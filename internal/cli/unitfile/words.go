package unitfile

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Split splits a value into words as systemd does: at spaces, with single and double quotes and the escapes of C.
func Split(value string) (words []string, err error) {
	var word strings.Builder
	quote, inWord := byte(0), false
	for i := 0; i < len(value); i++ {
		c := value[i]
		switch {
		case c == '\\':
			if i+1 == len(value) {
				return nil, errors.New(`a backslash at the end escapes nothing`)
			}
			n, err := unescape(value[i+1:], &word)
			if err != nil {
				return nil, err
			}
			i, inWord = i+n, true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteByte(c)
		case c == '"' || c == '\'':
			quote, inWord = c, true
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("the quote %c has no end", quote)
	}
	if inWord {
		words = append(words, word.String())
	}
	for _, w := range words {
		if strings.ContainsRune(w, 0) {
			return nil, errors.New("a word contains a zero byte")
		}
	}
	return words, nil
}

// simple are the escapes of one character.
var simple = map[byte]string{
	'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v", '\\': `\`, '"': `"`, '\'': `'`, 's': " ", ';': ";", ' ': " ",
}

// unescape writes the character of the escape at the beginning of s, which has no backslash any more. It returns the length
// of the escape.
func unescape(s string, to *strings.Builder) (int, error) {
	if plain, ok := simple[s[0]]; ok {
		to.WriteString(plain)
		return 1, nil
	}
	var digits int
	base, from := 16, 1
	switch {
	case s[0] == 'x':
		digits = 2
	case s[0] == 'u':
		digits = 4
	case s[0] == 'U':
		digits = 8
	case s[0] >= '0' && s[0] <= '7':
		digits, base, from = 3, 8, 0
	default:
		return 0, fmt.Errorf(`there is no escape \%c`, firstRune(s))
	}
	if len(s) < from+digits {
		return 0, fmt.Errorf(`the escape \%s is too short`, s)
	}
	n, err := strconv.ParseUint(s[from:from+digits], base, 32)
	if err != nil {
		return 0, fmt.Errorf(`the escape \%s is not a number`, s[:from+digits])
	}
	if s[0] == 'u' || s[0] == 'U' {
		if n > utf8.MaxRune || !utf8.ValidRune(rune(n)) {
			return 0, fmt.Errorf(`the escape \%s is not a character`, s[:from+digits])
		}
		to.WriteRune(rune(n))
		return from + digits, nil
	}
	if n > 0xff {
		return 0, fmt.Errorf(`the escape \%s is larger than a byte`, s[:from+digits])
	}
	to.WriteByte(byte(n))
	return from + digits, nil
}

func firstRune(s string) rune {
	r, _ := utf8.DecodeRuneInString(s)
	return r
}

// Quote returns a word for a value that systemd splits into words. Systemd expands specifiers (%n) and, in command lines,
// variables (${NAME}) in it; Literal prevents both.
func Quote(word string) string {
	if word != "" && strings.Trim(word, plainBytes) == "" {
		return word
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(word); {
		r, size := utf8.DecodeRuneInString(word[i:])
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == utf8.RuneError && size == 1, r < ' ', r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, word[i])
		default:
			b.WriteString(word[i : i+size])
		}
		i += size
	}
	b.WriteByte('"')
	return b.String()
}

// plainBytes are the characters of words without quotes.
const plainBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%$+=:,./-_{}[]"

// Literal doubles the characters that systemd expands in a command line, so that the program gets the word as it is.
func Literal(word string) string { return strings.NewReplacer("%", "%%", "$", "$$").Replace(word) }

// Specifiers doubles the characters that systemd expands in values that are not command lines.
func Specifiers(value string) string { return strings.ReplaceAll(value, "%", "%%") }

// Line returns words as a value that systemd splits into the same words.
func Line(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = Quote(w)
	}
	return strings.Join(quoted, " ")
}
