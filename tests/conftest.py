"""Settings that all tests share."""

from hypothesis import HealthCheck, settings

# Examples are few and always the same, so that a run on a busy machine is short and a failure comes back. To search
# for longer: pytest --hypothesis-profile=long tests/test_properties.py
settings.register_profile(
    "archsim", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("archsim")
