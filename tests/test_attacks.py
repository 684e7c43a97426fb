"""The attacks on digests: they succeed without protection, fail under strong noise, and report exact statistics."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from feddig import load_dataset
from feddig.attacks.candidates import Backgrounds, Candidates, Noise, read_classes, read_noise
from feddig.attacks.inversion import (
    apply_in_batches,
    evaluate_inversion,
    imitate_digests,
    optimise_images,
    psnr,
    ssim,
    train_decoder,
    train_denoiser,
)
from feddig.attacks.membership import evaluate_linking, evaluate_membership, roc_curve, score_records
from feddig.attacks.promise import (
    check_lattice,
    draw_pairs,
    evaluate_guesses,
    evaluate_labels,
    evaluate_noise,
    prove_epsilon,
    read_labels,
    score_coins,
)
from feddig.attacks.statistics import (
    Estimate,
    SuccessRate,
    area_under_curve,
    canary_epsilon,
    clopper_pearson,
    incomplete_beta,
    mean_estimate,
    p_value_of_mean,
    p_value_of_ranks,
    p_value_of_rate,
    true_positives,
)
from feddig.attacks.unmixing import Unmixing, evaluate_unmixing, unmix
from feddig.core.samples import ImageSource
from feddig.data.dataset import Images
from feddig.data.download import find_folder
from feddig.data.public_sets import PUBLISHED
from feddig.digest.digest import Digest, make_digest, mix_groups
from feddig.errors import DataError
from feddig.models.encoder import load_encoder
from feddig.models.train_encoder import generate_images
from feddig.privacy.clipping import received_features
from feddig.seeds import seeded_uniforms, torch_stream
from feddig.settings import DigestSettings, PrivacySettings

CLASSES, POOL, DIGESTS = 4, 480, 30
NO_NOISE, HUGE_NOISE = PrivacySettings(mechanism="none"), PrivacySettings(epsilon=1e-6)


@dataclass(frozen=True)
class Scene:
    """A digest and the facts that are needed to evaluate attacks on it."""

    digest: Digest
    members: Tensor
    """Rows of the pool, of shape [digests, SpD]."""
    noise: Noise


@pytest.fixture(scope="module")
def images() -> Tensor:
    return generate_images(2 * POOL, 1, torch_stream(0, "attacks"))


@pytest.fixture(scope="module")
def all_candidates(images: Tensor) -> Candidates:
    features = apply_in_batches(load_encoder("default", 1), images).flatten(1)
    return Candidates(features, torch.arange(len(images)) % CLASSES)


@pytest.fixture(scope="module")
def pool(all_candidates: Candidates) -> Candidates:
    return Candidates(all_candidates.features[:POOL], all_candidates.labels[:POOL])


@pytest.fixture(scope="module")
def public(all_candidates: Candidates) -> Candidates:
    return Candidates(all_candidates.features[POOL:], all_candidates.labels[POOL:])


def scene(
    pool: Candidates, privacy: PrivacySettings, spd: int = 4, mixing: str = "random", digests: int = DIGESTS
) -> Scene:
    """Make digests of the pool's first samples."""
    features, labels = pool.features[: digests * spd], pool.labels[: digests * spd]
    settings = DigestSettings(samples_per_digest=spd, mixing=mixing, seed=0)
    digest = make_digest(
        0, features, labels, len(pool.rows), settings=settings, privacy=privacy, encoder="shipped"
    )
    groups = mix_groups(labels, spd, mixing, seeded_uniforms(0, "mixing", 0))
    return Scene(digest, groups, read_noise(digest, float(pool.features.abs().max())))


def unmix_and_evaluate(
    seen: Scene, pool: Candidates, report: Callable[[int], None] | None = None
) -> Unmixing:
    found = unmix(seen.digest, pool, seen.noise, report)
    return evaluate_unmixing(found, seen.digest, pool, seen.members, seen.noise)


# statistics


@pytest.mark.parametrize(
    ("right", "canaries", "epsilon"),
    [(100, 100, 3.4930), (900, 1000, 2.0212), (750, 1000, 0.9767), (500, 1000, 0)],
)
def test_canaries_prove_the_published_epsilons(right: int, canaries: int, epsilon: float) -> None:
    assert round(canary_epsilon(right, canaries), 4) == epsilon


def test_the_canary_bound_of_all_right_has_a_closed_form() -> None:
    share = 0.05 ** (1 / 30)
    assert canary_epsilon(30, 30) == pytest.approx(math.log(share / (1 - share)), rel=1e-12)
    assert canary_epsilon(0, 30) == 0


def test_delta_discounts_as_many_right_guesses_as_failures_are_likely() -> None:
    assert canary_epsilon(1000, 1000, 0.95, canaries=1000, delta=1e-9) == pytest.approx(
        canary_epsilon(1000, 1000, 0.975)
    )
    # with 0.5 failures on average, three have a probability below half of 5 % and two a higher one
    assert canary_epsilon(1000, 1000, 0.95, canaries=5000, delta=1e-4) == pytest.approx(
        canary_epsilon(998, 998, 0.975)
    )
    assert canary_epsilon(700, 1000, canaries=1000, delta=0.9) == 0


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (3.0, 0.0), (3.0, 1e-3)])
def test_the_bound_exceeds_the_true_epsilon_no_more_often_than_its_level_allows(
    epsilon: float, delta: float
) -> None:
    """Randomised response that fails with probability delta is the worst case for epsilon and delta."""
    draw, exceeded, proved = torch_stream(0, "responses"), 0, []
    for _ in range(200):
        coins = torch.randint(2, (2000,), generator=draw)
        fails = torch.rand(2000, generator=draw) < delta
        is_kept = torch.rand(2000, generator=draw) < 1 / (1 + math.exp(-epsilon))
        answers = torch.where(is_kept | fails, coins, 1 - coins)
        found = evaluate_guesses((1.0 - 2 * answers) * (1 + fails), coins, delta)
        exceeded += found.epsilon > epsilon
        proved.append(found.epsilon)
    assert exceeded <= 20
    assert sum(proved) / len(proved) > 0.75 * epsilon


def test_guessing_only_sure_coins_proves_more_than_guessing_all() -> None:
    """Publish one coin in fifty: guessing all coins is hardly better than chance."""
    draw = torch_stream(0, "coins")
    coins = torch.randint(2, (20_000,), generator=draw)
    scores = torch.randn(20_000, generator=draw)
    scores[:400] = (1.0 - 2 * coins[:400]) * 9
    found = evaluate_guesses(scores, coins, level=0.99)
    assert found.right["all"].share < 0.53
    assert found.right["surest hundredth"].share == 1
    assert found.epsilon == prove_epsilon([(200, 200)], 20_000, level=0.99) > 3
    assert found.most == prove_epsilon([(20_000, 20_000)], 20_000, level=0.99) > 8


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.3084971078),
        (10, 10, 0.6915028922, 1.0),
        (5, 10, 0.1870860284, 0.8129139716),
        (1, 20, 0.0012650895, 0.2487327628),
    ],
)
def test_clopper_pearson_has_the_published_values(hits: int, trials: int, low: float, high: float) -> None:
    assert clopper_pearson(hits, trials) == pytest.approx((low, high), abs=1e-9)


@pytest.mark.parametrize(("hits", "trials"), [(3, 17), (390, 400), (40, 4000)])
def test_both_ends_of_an_interval_leave_out_half_by_the_binomial_sum(hits: int, trials: int) -> None:
    low, high = clopper_pearson(hits, trials, 0.99)

    def chance(share: float, counts: range) -> float:
        return math.fsum(
            math.exp(
                math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
                + count * math.log(share) + (trials - count) * math.log1p(-share)
            )
            for count in counts
        )  # fmt: skip

    assert chance(low, range(hits, trials + 1)) == pytest.approx(0.005, rel=1e-8)
    assert chance(high, range(hits + 1)) == pytest.approx(0.005, rel=1e-8)


def test_incomplete_beta_has_values_known_by_hand() -> None:
    assert incomplete_beta(0.3, 1, 1) == pytest.approx(0.3)
    assert incomplete_beta(0.5, 7, 7) == pytest.approx(0.5)
    assert incomplete_beta(0.2, 2, 1) == pytest.approx(0.04)
    assert incomplete_beta(0.2, 1, 3) == pytest.approx(1 - 0.8**3)
    assert (incomplete_beta(0, 2, 3), incomplete_beta(1, 2, 3)) == (0, 1)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="3 hits in 2"):
        clopper_pearson(3, 2)


def test_area_under_curve_counts_pairs_and_halves_ties() -> None:
    area = area_under_curve(torch.tensor([3.0, 1.0]), torch.tensor([2.0, 1.0, 0.0]))
    assert area.value == pytest.approx((3 + 1.5) / 6)
    low, high = area.interval()
    assert 0 <= low < area.value < high <= 1


def test_a_perfect_area_still_has_an_interval() -> None:
    area = area_under_curve(torch.arange(5.0) + 10, torch.arange(10.0))
    assert area.value == 1
    assert area.interval() == clopper_pearson(5, 5)


def test_true_positives_lie_above_all_but_the_allowed_share() -> None:
    others = torch.arange(100.0)
    members = torch.tensor([97.5, 98.5, 99.5, 200.0])
    assert true_positives(members, others, 0.01) == SuccessRate(3, 4, 0.01)
    assert true_positives(members, others, 0.001) == SuccessRate(2, 4, 0.001)


def test_estimates_have_the_normal_interval() -> None:
    estimate = mean_estimate(torch.tensor([1.0, 2.0, 3.0]), 0.0)
    assert estimate.interval() == pytest.approx((2 - 1.959964 / 3**0.5, 2 + 1.959964 / 3**0.5), abs=1e-5)


def test_p_values_are_known_by_hand() -> None:
    assert p_value_of_rate(SuccessRate(2, 2, 0.5)) == pytest.approx(0.25)
    assert p_value_of_rate(SuccessRate(0, 9, 0.5)) == 1
    assert p_value_of_mean(Estimate(0.5 + 1.6448536, 1.0, 0.5)) == pytest.approx(0.05, abs=1e-6)
    # with 2 members and 2 others in random order: both members first has probability 1/6, at least one first 1/2
    assert p_value_of_ranks(2, 2, 2, 0) == pytest.approx(1 / 6)
    assert p_value_of_ranks(1, 2, 2, 0) == pytest.approx(1 / 2)
    assert p_value_of_ranks(0, 2, 2, 0) == p_value_of_ranks(2, 2, 2, 2) == 1


def test_a_curve_goes_from_none_to_all_and_takes_ties_together() -> None:
    false, true = roc_curve(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert false.tolist() == [0, 0, 0.5, 1]
    assert true.tolist() == [0, 0.5, 1, 1]


# what an attacker can read from a digest


def test_classes_are_read_from_soft_labels(pool: Candidates) -> None:
    seen = scene(pool, NO_NOISE, spd=3)
    truth = [tuple(sorted(row)) for row in pool.labels[seen.members].tolist()]
    assert read_classes(seen.digest) == truth


def test_noised_labels_still_give_as_many_classes_as_samples() -> None:
    facts = {"samples_per_digest": 4, "weights": [0.25] * 4}
    digest = Digest(0, torch.zeros(1, 3), torch.tensor([[0.55, 0.4, 0.05]]), facts)
    assert read_classes(digest) == [(0, 0, 1, 1)]


def test_unequal_weights_are_refused() -> None:
    facts = {"samples_per_digest": 2, "weights": [0.25, 0.75]}
    with pytest.raises(ValueError, match="equal"):
        read_classes(Digest(0, torch.zeros(1, 3), torch.tensor([[0.25, 0.75]]), facts))


def test_noise_is_read_from_the_facts(pool: Candidates) -> None:
    noise = read_noise(scene(pool, PrivacySettings(epsilon=0.005)).digest, 80.0)
    assert noise == Noise(pytest.approx(0.8 * 2**0.5), heavy_tails=True)
    assert read_noise(scene(pool, NO_NOISE).digest, 80.0) == Noise(0.0)
    assert float(noise.misfit(torch.tensor([3.0, -4.0]))) == 3.5
    assert float(Noise(1.0).misfit(torch.tensor([3.0, -4.0]))) == pytest.approx(12.5**0.5)


def test_a_background_is_the_sum_of_its_classes(pool: Candidates) -> None:
    backgrounds = Backgrounds(pool, 2.0)
    background = backgrounds.of([1, 0])
    own = [pool.features[pool.labels == label] for label in range(CLASSES)]
    each = [torch.cov(features.T, correction=0) for features in own]
    average, elements = torch.stack(each).mean(0), pool.features.shape[1]
    share = elements / (elements + POOL / CLASSES)
    covariance = (1 - share) * (each[0] + each[1]) + 2 * share * average + 4 * torch.eye(elements)
    torch.testing.assert_close(background.mean, own[0].mean(0) + own[1].mean(0))
    torch.testing.assert_close(background.precision @ covariance, torch.eye(elements), atol=1e-3, rtol=0)
    assert background.log_determinant == pytest.approx(float(torch.logdet(covariance.double())), rel=1e-4)


def test_a_class_that_no_candidate_has_is_refused(pool: Candidates) -> None:
    with pytest.raises(DataError, match="no candidate is of class 9"):
        Backgrounds(pool, 1.0).of([9])


# canaries


@pytest.mark.parametrize("noise", [Noise(1.0), Noise(1.0, heavy_tails=True)])
def test_canaries_of_a_digest_raise_elements_of_their_own(noise: Noise) -> None:
    pairs = draw_pairs(3, 13, 2, torch_stream(0, "pairs"))
    assert len(pairs.unique()) == pairs.numel() == 12
    coins = torch.tensor([[0, 1, 1], [1, 0, 1]])
    rest = torch.zeros(2, 13)
    for digest, own in enumerate(coins):
        for canary, coin in enumerate(own):
            rest[digest, pairs[canary, coin]] = 2.0
    scores = score_coins(rest, pairs, torch.full((3,), 2.0), noise)
    assert torch.equal((scores < 0).long(), coins)
    assert len(scores.abs().unique()) == 1, "canaries do not overlap"


# unmixing


@pytest.mark.parametrize(("spd", "mixing"), [(1, "random"), (4, "random"), (4, "within-class")])
def test_unmixing_finds_all_members_without_noise(pool: Candidates, spd: int, mixing: str) -> None:
    result = unmix_and_evaluate(scene(pool, NO_NOISE, spd, mixing), pool)
    assert result.digests.share == 1
    assert result.members.share == 1
    assert result.digests.chance < 0.01
    assert result.gave_up == result.hidden == 0


def test_unmixing_finds_nothing_in_huge_noise_and_says_why(pool: Candidates) -> None:
    heard: list[int] = []
    result = unmix_and_evaluate(scene(pool, HUGE_NOISE), pool, heard.append)
    assert heard == list(range(1, DIGESTS + 1))
    assert result.digests.hits == 0
    assert result.members.interval(0.99)[0] <= result.members.chance
    assert result.hidden + result.gave_up == DIGESTS
    assert result.hidden > result.gave_up


def test_giving_up_and_candidates_that_fit_as_well_are_distinguished(pool: Candidates) -> None:
    seen = scene(pool, NO_NOISE)
    twins = Candidates(pool.features.repeat(2, 1), pool.labels.repeat(2))
    wrong, doubles = torch.full_like(seen.members, POOL - 1), seen.members + POOL
    lazy, confused = (
        evaluate_unmixing(found, seen.digest, twins, seen.members, seen.noise) for found in (wrong, doubles)
    )
    assert (lazy.gave_up, lazy.hidden) == (DIGESTS, 0)
    assert (confused.gave_up, confused.hidden) == (0, DIGESTS)


def test_a_pool_too_small_for_a_digest_is_refused(pool: Candidates) -> None:
    seen = scene(pool, NO_NOISE, mixing="within-class", digests=12)
    with pytest.raises(DataError, match=r"4 sample\(s\) of class 0, more than there are candidates"):
        unmix(seen.digest, Candidates(pool.features[:12], pool.labels[:12]), seen.noise)


# membership and linking


@pytest.mark.parametrize("privacy", [NO_NOISE, HUGE_NOISE])
@pytest.mark.parametrize("blind", [False, True])
def test_members_are_found_and_linked_unless_noise_hides_them(
    pool: Candidates, public: Candidates, privacy: PrivacySettings, blind: bool
) -> None:
    seen, homes = scene(pool, privacy), torch.arange(DIGESTS).repeat_interleave(4)
    digest = replace(seen.digest, labels=torch.ones(DIGESTS, 1)) if blind else seen.digest
    inside, outside = (
        Candidates(pool.features[rows], pool.labels[rows])
        for rows in (seen.members.flatten(), torch.arange(4 * DIGESTS, POOL))
    )
    known = [each.without_labels() if blind else each for each in (inside, outside, public)]
    members, others = (score_records(digest, each, known[2], seen.noise).by_name() for each in known[:2])
    for name, scores in members.items():
        found = evaluate_membership(scores.amax(1), others[name].amax(1), inside.labels, outside.labels)
        linked = evaluate_linking(scores, homes)
        if privacy is NO_NOISE:
            assert found.auc_within_class.value > 0.9, name
            assert found.true_positives[0.01].share > 0.3, name
            assert linked.share > 0.8, name
        else:
            low, high = found.auc_within_class.interval(0.999)
            assert low < 0.5 < high, name
            low, high = linked.interval(0.999)
            assert low < linked.chance < high, name
        assert linked.chance == pytest.approx(1 / DIGESTS) if blind else linked.chance > 1 / DIGESTS


def test_a_record_is_never_linked_to_digests_without_its_class(pool: Candidates, public: Candidates) -> None:
    seen = scene(pool, NO_NOISE, mixing="within-class", digests=12)
    scores = score_records(seen.digest, pool, public, seen.noise).likelihood_ratio
    has = seen.digest.labels[:, pool.labels].T > 0
    assert torch.equal(scores.isfinite(), has)


# inversion


def test_the_same_image_has_the_highest_similarity() -> None:
    image = torch.rand(2, 1, 16, 16, generator=torch_stream(0, "likeness"))
    torch.testing.assert_close(ssim(image, image), torch.ones(2))
    assert bool((psnr(image, image) == math.inf).all())


def test_the_similarity_of_flat_images_is_known_by_hand() -> None:
    grey, bright = torch.full((1, 1, 12, 12), 0.25), torch.full((1, 1, 12, 12), 0.75)
    assert float(psnr(grey, bright)) == pytest.approx(-10 * math.log10(0.25))
    expected = (2 * 0.25 * 0.75 + 1e-4) / (0.25**2 + 0.75**2 + 1e-4)
    assert float(ssim(grey, bright)) == pytest.approx(expected, abs=1e-3)


def test_the_similarity_of_opposites_is_negative() -> None:
    board = (torch.arange(16)[:, None] + torch.arange(16)) % 2.0
    # the means are equal and the covariance is negative: (2 (-v) + c) / (2 v + c) with v = 1/4
    expected = (-0.5 + 9e-4) / (0.5 + 9e-4)
    assert float(ssim(board[None, None], 1 - board[None, None])) == pytest.approx(expected, abs=1e-2)


def test_every_pair_of_a_digest_is_compared() -> None:
    images = torch.rand(3, 1, 1, 12, 12, generator=torch_stream(0, "pairs"))
    members = torch.rand(3, 4, 1, 12, 12, generator=torch_stream(1, "pairs"))
    assert ssim(images, members).shape == psnr(images, members).shape == (3, 4)
    torch.testing.assert_close(ssim(images, members)[1, 2], ssim(images[1, 0], members[1, 2]))


def test_inversion_recovers_members_without_mixing_and_noise(images: Tensor) -> None:
    encoder = load_encoder("default", 1)
    members, nonmembers = images[:24, None], images[24:48, None]
    features = encoder(images[:24])
    decoder = train_decoder(encoder, images[POOL:], steps=60)
    for recovered in (
        apply_in_batches(decoder, features),
        optimise_images(encoder, features, (1, 32, 32), changes=40),
    ):
        result = evaluate_inversion(recovered, members, nonmembers)
        assert recovered.shape == (24, 1, 32, 32)
        assert result.ssim.interval()[0] > result.ssim.chance
        assert result.psnr.interval()[0] > result.psnr.chance
        assert result.closer.interval()[0] > 0.5


def draw_strokes() -> Tensor:
    """Draw thin strokes, as in handwriting."""
    across = torch.randint(4, 28, (300, 1), generator=torch_stream(0, "strokes"))
    strokes = (torch.arange(32) - across).abs() < 2
    return (strokes[:, None] & (torch.arange(32) % 31 > 6)[:, None]).float().unsqueeze(1)


def test_a_decoder_learns_where_most_pixels_are_black() -> None:
    """A decoder that starts brighter than the images learns to output only black."""
    images, encoder = draw_strokes(), load_encoder("default", 1)
    decoded = apply_in_batches(train_decoder(encoder, images, steps=60), encoder(images[:40]))
    assert (decoded - images[:40]).square().mean() < 0.5 * images[:40].var()


def test_training_a_decoder_leaves_the_global_stream_alone(images: Tensor) -> None:
    before = torch.random.get_rng_state()
    decoders = [train_decoder(load_encoder("default", 1), images[:32], steps=2) for _ in range(2)]
    assert torch.equal(before, torch.random.get_rng_state())
    codes = torch.rand(1, 4, 8, 8)
    torch.testing.assert_close(decoders[0](codes), decoders[1](codes), rtol=0, atol=0)


def test_a_denoiser_learns_and_leaves_the_global_stream_alone() -> None:
    clean = draw_strokes()
    noised = clean + 0.3 * torch.randn(clean.shape, generator=torch_stream(0, "spoilt"))
    before = torch.random.get_rng_state()
    denoised = apply_in_batches(train_denoiser(noised, clean, steps=40), noised)
    assert torch.equal(before, torch.random.get_rng_state())
    assert float((denoised - clean).square().mean()) < 0.5 * float(
        (noised.clamp(0, 1) - clean).square().mean()
    )


@pytest.mark.parametrize("heavy_tails", [False, True])
def test_imitated_digests_have_the_assumed_noise(heavy_tails: bool) -> None:
    codes, images = torch.zeros(40, 2, 4, 4), torch.rand(40, 1, 8, 8)
    features, means = imitate_digests(codes, images, 4, Noise(2.0, heavy_tails), count=64)
    assert features.shape == (64, 2, 4, 4)
    assert means.shape == (64, 1, 8, 8)
    assert float(features.std()) == pytest.approx(2, abs=0.2)


# labels and lattice


def test_exact_labels_reveal_all_classes(pool: Candidates) -> None:
    seen = scene(pool, NO_NOISE, mixing="within-class", digests=12)
    leak = evaluate_labels(read_labels(seen.digest), pool.labels[seen.members], "same-label")
    assert leak.records.share == leak.digests.share == 1
    assert leak.records.chance == pytest.approx(0.25)
    assert leak.histogram_distance == pytest.approx(0, abs=1e-6)
    assert "public" in leak.meaning


def test_mixing_hides_a_records_class_but_not_the_digests(pool: Candidates) -> None:
    seen = scene(pool, NO_NOISE)
    leak = evaluate_labels(read_labels(seen.digest), pool.labels[seen.members], "replace-one")
    assert leak.digests.share == 1
    assert leak.digests.chance < 0.2
    assert 0.25 < leak.records.share < 1
    assert "private" in leak.meaning


def test_labels_without_information_about_the_records_are_chance() -> None:
    labels = torch.tensor([[0, 0], [1, 1]])
    digest = Digest(
        0, torch.zeros(2, 1), torch.full((2, 2), 0.5), {"samples_per_digest": 2, "weights": [0.5] * 2}
    )
    leak = evaluate_labels(read_labels(digest), labels, "replace-one")
    assert leak.records == SuccessRate(2, 4, 0.5)
    assert leak.digests == SuccessRate(0, 2, 0.25)


def test_whole_steps_are_on_the_lattice_and_other_numbers_are_not(pool: Candidates) -> None:
    steps = torch.randint(-(10**5), 10**5, (1000,), generator=torch_stream(0, "lattice"))
    on = check_lattice((steps.double() * 0.003).float(), 0.003)
    assert (on.off, on.undecided) == (0, 0)
    off = check_lattice(scene(pool, PrivacySettings()).digest.features, 2.0**-10)
    assert off.off > 0.9 * off.numbers
    assert off.worst > 0.4


@pytest.mark.parametrize("spd", [3, 4])
def test_what_a_receiver_makes_of_integer_sums_is_on_the_lattice(spd: int) -> None:
    sums = torch.randint(-(2**22), 2**22, (1000,), generator=torch_stream(0, "sums")).numpy()
    received = torch.from_numpy(received_features(sums, 2.0**-10, spd))
    on = check_lattice(received, 2.0**-10 / spd)
    assert (on.off, on.undecided) == (0, 0)
    beside = torch.nextafter(received, torch.full_like(received, torch.inf))
    assert check_lattice(beside, 2.0**-10 / spd).off == 1000, "a change to the next float is noticed"


def test_numbers_too_large_for_their_type_are_undecided() -> None:
    lattice = check_lattice(torch.tensor([1e9, 1.0]), 1.0)
    assert (lattice.off, lattice.undecided) == (0, 1)


def test_noise_is_compared_with_the_contract() -> None:
    mixed = torch.zeros(5000)
    released = torch.randn(5000, generator=torch_stream(0, "noise")) * 2
    assert evaluate_noise(released, mixed, 2.0).value == pytest.approx(1, abs=0.1)
    assert evaluate_noise(released, mixed, 1.0).interval()[0] > 1
    assert evaluate_noise(released, mixed, 2.5).interval()[1] < 1


# the figures of the documentation


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "least", "most"), [(0.005, 0.93, 1.0), (0.0005, 0.0, 0.05)])
def test_unmixing_of_fashion_mnist(epsilon: float, least: float, most: float) -> None:
    if find_folder(PUBLISHED["fashion-mnist"], None) is None:
        pytest.skip("fashion-mnist is not on this computer")
    images = load_dataset("fashion-mnist").train
    rows = torch.randperm(len(images), generator=torch_stream(0, "unmixing pool"))[:10_000].numpy()
    chosen = Images(images.pixels[rows], images.labels[rows])
    source = ImageSource(chosen, load_encoder("default", 1), torch.device("cpu"))
    assert source.features is not None
    pool = Candidates(source.features.flatten(1), source.labels)
    result = unmix_and_evaluate(scene(pool, PrivacySettings(epsilon=epsilon), digests=100), pool)
    assert least <= result.digests.share <= most
