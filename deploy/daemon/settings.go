package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
)

// SettingError says which setting is wrong, how, and what to do. Main prints it as one sentence and exits with 2.
type SettingError struct {
	Setting string // as the user writes it: DATABASE_URL, --listen
	Problem string // continues the sentence: "is not set"
	Cure    string // what to do, as an imperative
}

func (e *SettingError) Error() string {
	if e.Cure == "" {
		return e.Setting + " " + e.Problem
	}
	return e.Setting + " " + e.Problem + ": " + e.Cure
}

// HTTP is embedded by programs that serve health and metrics; About.Listen is the default.
type HTTP struct {
	Listen string `help:"HOST:PORT for /healthz, /readyz and /metrics." default:"${listen}" env:"LISTEN"`
}

// parse fills cfg from flags, environment and secret files. done means that help was asked for and given.
func parse(about About, cfg any, args []string, stdout, stderr io.Writer) (parsed *kong.Context, done bool, err error) {
	vars := kong.Vars{"listen": about.Listen}
	maps.Copy(vars, about.Vars)
	files := secretFiles{}
	parser, err := kong.New(cfg, kong.Name(about.Name), kong.Description(about.Help), kong.Writers(stdout, stderr), vars,
		kong.Exit(func(int) { done = true }), kong.Resolvers(files), kong.ValueFormatter(helpWithFile))
	if err != nil {
		return nil, false, fmt.Errorf("settings of %s: %w", about.Name, err)
	}
	parsed, err = parser.Parse(args)
	if done {
		return nil, true, nil
	}
	if setting, ok := errors.AsType[*SettingError](err); ok {
		return nil, false, setting // without kong's own words around it
	}
	if err != nil {
		return nil, false, fmt.Errorf("%w (see %s --help)", err, about.Name)
	}
	return parsed, false, files.conflict(parsed)
}

// secretFiles is a kong.Resolver that reads NAME_FILE for every Secret with the environment name NAME.
type secretFiles struct{}

const (
	fileSuffix = "_FILE"
	// maxSecretBytes is far above any key or URL, and keeps a wrong path from being read for ever.
	maxSecretBytes = 64 << 10
)

// Validate is called by kong, which needs it; there is nothing to check before the flags are known.
func (secretFiles) Validate(*kong.Application) error { return nil }

// Resolve is asked by kong for every flag that is not on the command line.
func (secretFiles) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	name, path := secretFile(flag.Value)
	if path == "" {
		return nil, nil
	}
	for _, env := range flag.Tag.Envs {
		if os.Getenv(env) != "" {
			return nil, bothGiven(env, name)
		}
	}
	return readSecret(name, path)
}

// conflict finds secrets that came by flag as well as by file; for these Resolve is not asked.
func (secretFiles) conflict(parsed *kong.Context) error {
	for _, path := range parsed.Path {
		if path.Flag == nil || path.Resolved {
			continue
		}
		if name, file := secretFile(path.Flag.Value); file != "" {
			return bothGiven("--"+path.Flag.Name, name)
		}
	}
	return nil
}

func bothGiven(value, file string) *SettingError {
	return &SettingError{Setting: value, Problem: "and " + file + " are both given", Cure: "give one of them"}
}

// secretFile returns the name and value of NAME_FILE, empty unless the value is a Secret and the variable is set.
func secretFile(value *kong.Value) (name, path string) {
	if value.Target.Type() != reflect.TypeFor[Secret]() {
		return "", ""
	}
	for _, env := range value.Tag.Envs {
		if path := os.Getenv(env + fileSuffix); path != "" {
			return env + fileSuffix, path
		}
	}
	return "", ""
}

func readSecret(name, path string) (string, error) {
	file, err := os.Open(path) //nolint:gosec // the user names the file
	if err != nil {
		return "", unreadable(name, path, err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxSecretBytes+1))
	if err != nil {
		return "", unreadable(name, path, err)
	}
	if len(content) > maxSecretBytes {
		return "", &SettingError{Setting: name, Problem: fmt.Sprintf("names %s, which is longer than %d bytes", path, maxSecretBytes), Cure: "name the file that holds the secret alone"}
	}
	secret := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	if secret == "" {
		return "", &SettingError{Setting: name, Problem: "names " + path + ", which is empty", Cure: "write the secret into it"}
	}
	return secret, nil
}

func unreadable(name, path string, err error) *SettingError {
	problem := err
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		problem = pathErr.Err
	}
	return &SettingError{
		Setting: name, Problem: fmt.Sprintf("names %s, which cannot be read (%s)", path, problem),
		Cure: "mount or write the file, or unset " + name,
	}
}

// helpWithFile adds NAME_FILE to the help of secrets.
func helpWithFile(value *kong.Value) string {
	help := kong.DefaultHelpValueFormatter(value)
	if value.Target.Type() != reflect.TypeFor[Secret]() || len(value.Tag.Envs) == 0 {
		return help
	}
	return cmp.Or(strings.TrimSuffix(help, "."), "Secret") + ", or a file named by $" + value.Tag.Envs[0] + fileSuffix + "."
}
