# Two commands are enough on a fresh machine: `make demo` and `make test`. `make help` explains the rest.

GO      ?= go
CC      ?= $(shell $(GO) env CC)
PROGRAMS = ./sql/cmd/migrate ./ingest/cmd/ingest-eventhubs ./ingest/cmd/ingest-solace ./ingest/cmd/ingest-file \
           ./ingest/solace/cmd/publish-solace ./charger/cmd/charger ./deploy/standin ./deploy/demo ./deploy/localpg/cmd/localpg

# Tools are run at pinned versions and are no part of go.mod.
SQLC          = github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1
GOLANGCI_LINT = github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# Azurite stands in for Azure Blob Storage in tests; the tests look for it there.
AZURITE         = .cache/azurite/node_modules
AZURITE_VERSION = 3.37.0

# Stripe's own mock, which knows Stripe's published description of its API.
STRIPE_MOCK         = .cache/bin/stripe-mock
STRIPE_MOCK_VERSION = v0.203.0

# The race detector needs a C compiler; without one the tests run all the same, and say so.
RACE := $(if $(shell command -v $(CC) 2>/dev/null),-race,)

TEST_FLAGS ?=

.PHONY: help
help: ## Explain every target.
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make demo takes DEMO_EXIT=1 (end after the summary), DEMO_EVENTS=N and DEMO_JSON=FILE."

.PHONY: build
build: ## Build all programs into bin/.
	@test -n "$(RACE)" || echo "no C compiler ($(CC)): ingest-solace and publish-solace are built without Solace's client, and say so"
	$(GO) build -o bin/ $(PROGRAMS)

.PHONY: demo
demo: build ## Run the main job here: a billing run from Event Hubs to Stripe, on stand-ins, with faults; leaves the console up.
	DEMO_EXIT='$(DEMO_EXIT)' DEMO_EVENTS='$(or $(DEMO_EVENTS),2000)' DEMO_JSON='$(DEMO_JSON)' bin/demo $(DEMO_FLAGS)

.PHONY: test
test: ## Run all tests, with the race detector where there is a C compiler; they start the Postgres they need.
	@test -n "$(RACE)" || echo "no C compiler ($(CC)): the tests run without the race detector, and those with Solace's client are left out"
	@command -v "$${CHROME_PATH:-chromium}" >/dev/null || echo "no Chromium: the tests in a browser are left out (apt-get install chromium)"
	@command -v "$${AZURITE_PATH:-azurite-blob}" >/dev/null || test -x $(AZURITE)/.bin/azurite-blob || echo "no Azurite: the tests of checkpoints in Blob Storage are left out (make azurite)"
	@command -v "$${STRIPE_MOCK_PATH:-stripe-mock}" >/dev/null || test -x $(STRIPE_MOCK) || echo "no stripe-mock: the requests are not held against Stripe's own description (make stripe-mock)"
	$(GO) test $(RACE) -timeout 40m $(TEST_FLAGS) ./...

.PHONY: stripe-mock
stripe-mock: ## Install Stripe's own mock, which checks the shape of our requests in a test.
	@$(GO) version -m $(STRIPE_MOCK) 2>/dev/null | grep -qs 'stripe-mock.$(STRIPE_MOCK_VERSION)' || \
		GOBIN='$(CURDIR)/.cache/bin' $(GO) install github.com/stripe/stripe-mock@$(STRIPE_MOCK_VERSION)

.PHONY: azurite
azurite: ## Install Azurite, for the tests of checkpoints in Blob Storage; it needs nodejs and npm.
	@grep -qs '"version": "$(AZURITE_VERSION)"' $(AZURITE)/azurite/package.json || \
		npm install --prefix .cache/azurite --no-save --no-audit --no-fund --loglevel error azurite@$(AZURITE_VERSION)

.PHONY: lint
lint: ## Check style, layering and formatting.
	$(GO) run $(GOLANGCI_LINT) run ./...
	$(GO) run $(GOLANGCI_LINT) fmt --diff ./...

.PHONY: generate
generate: ## Write the generated code anew: the queries' Go from their SQL.
	cd sql && $(GO) run $(SQLC) generate

.PHONY: verify
verify: ## Check that generated code, go.mod and idioms are up to date.
	cd sql && $(GO) run $(SQLC) diff
	$(GO) mod tidy -diff
	$(GO) mod verify
	$(GO) vet ./...

.PHONY: nocgo
nocgo: ## Build everything that must build without a C compiler.
	CGO_ENABLED=0 $(GO) build -o /dev/null ./...

.PHONY: ci
ci: lint verify nocgo test ## What continuous integration runs.

.PHONY: clean
clean: ## Remove what was built.
	rm -rf bin
